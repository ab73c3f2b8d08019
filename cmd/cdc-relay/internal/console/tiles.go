package console

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// tile is the number of messages in one state, with a link to their list.
type tile struct {
	Name, Count, Note, Link string
	// Exact is the number in full, if Count is shorter; else "".
	Exact string
	// Level colors the tile: plain, good, warning, bad; empty: it is gray, because there are no messages.
	Level string
	count operator.Count
}

// waitingTiles are the states of the rows in the outbox. They add up to the queue depth.
func waitingTiles(v show.Stats) (all []tile) {
	for _, s := range v.InStates() {
		name, level := show.StateText(s.State), "plain"
		switch s.State {
		case operator.Retrying, operator.Expired, operator.NewerVersion, operator.NotDeleted:
			level = "warning"
		case operator.Blocked:
			level = blockedLevel(v)
		}
		all = append(all, newTile(strings.ToUpper(name[:1])+name[1:], s.Count, level, s.Note,
			"/waiting?state="+string(s.State)))
	}
	return all
}

// tilesOf returns the tiles of the overview. The first have fixed places, others follow if they have messages.
func tilesOf(s sample) []tile {
	v := s.view
	all := waitingTiles(v)
	named := func(name string) int { return slices.IndexFunc(all, func(t tile) bool { return t.Name == name }) }
	if n := v.Count("blocked"); n.N > 0 && !keysBlocked(v) { // these messages wait as the first of their key does
		waiting := v.Count("waiting")
		waiting.N += n.N
		if n.Precision != operator.Exact {
			waiting.Precision = n.Precision
		}
		note := show.Number(n.N) + " behind an earlier one of their key"
		if oldest := all[named("Waiting")].Note; oldest != "" { // an earlier one of a key waits, too
			note = oldest + "; " + note
		}
		all[named("Waiting")] = newTile("Waiting", waiting, "plain", note, "/waiting")
		all[named("Blocked")] = newTile("Blocked", operator.Count{}, "plain", "", "/keys?blocked=1")
	}
	died := agoText("newest", v.NewestDeadLetterAt, v.At)
	all = append(all, newTile("Dead", v.Count("dead_letters"), "bad", died, "/dead-letters"))
	if published := s.published(); published != nil {
		all = append(all, *published)
	}
	var shown []tile
	for _, name := range []string{"Waiting", "Retrying", "Blocked", "Scheduled", "Dead", "Published"} {
		if n := named(name); n >= 0 {
			shown = append(shown, all[n])
			all = slices.Delete(all, n, n+1)
		}
	}
	return append(shown, slices.DeleteFunc(all, func(t tile) bool { return t.count.N == 0 })...)
}

// keysBlocked reports whether a rejected message, a scheduled one or a dead letter may block a key.
func keysBlocked(v show.Stats) bool {
	n := v.Count("blocked_keys")
	return n.N > 0 || n.Precision != operator.Exact
}

func blockedLevel(v show.Stats) string {
	if keysBlocked(v) {
		return "warning"
	}
	return "plain"
}

// published returns nil if the number is unknown.
func (s sample) published() *tile {
	switch leading := s.view.Relays.Leading(); {
	case s.kept:
		return new(newTile("Published", s.recent, "good", "in the last hour", "/published"))
	case len(leading) == 1:
		count := operator.Count{N: leading[0].Published, Precision: operator.Exact}
		return new(newTile("Published", count, "good", "since the relay started", "/tail"))
	}
	return nil
}

func newTile(name string, count operator.Count, level, note, link string) tile {
	t := tile{Name: name, Count: tileText(count), Note: note, Link: link, Level: level, count: count}
	if exact := show.Count(count); exact != t.Count {
		t.Exact = exact
	}
	if count.N == 0 && count.Precision != operator.Unknown {
		t.Level, t.Note = "empty", ""
	}
	return t
}

// tileText is show.Count in a few characters.
func tileText(c operator.Count) string {
	switch c.Precision {
	case operator.AtLeast:
		return compact(c.N) + "+"
	case operator.Estimate:
		return "~" + compact(c.N)
	case operator.Unknown:
		return "?"
	}
	return compact(c.N)
}

// compact returns a number in up to five characters, such as 9,999 or 12.3k or 1.23M.
func compact(n int64) string {
	if n < 10_000 {
		return show.Number(n)
	}
	value, unit := float64(n), ""
	for _, next := range []string{"k", "M", "G"} {
		if value < 999.5 {
			break
		}
		value, unit = value/1000, next
	}
	return strconv.FormatFloat(value, 'g', 3, 64) + unit
}

func agoText(word string, at *time.Time, now time.Time) string {
	if at == nil {
		return ""
	}
	return word + " " + show.Duration(now.Sub(*at)) + " ago"
}

package console

import (
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// tile is the number of messages in one state, with a link to their list.
type tile struct {
	Name, Count, Note, Link string
	// Level colors the tile: quiet (no message), plain, good, warning, bad.
	Level string
}

// tilesOf returns a tile for each state. Without dead letters and published messages, they add up to the queue depth.
func tilesOf(s sample) []tile {
	v := s.view
	of := func(name, key, level, note, link string) tile { return newTile(name, v.Count(key), level, note, link) }
	tiles := []tile{
		of("Waiting", "waiting", "plain", oldestText(v), "/waiting?state=waiting"),
		of("Due", "due", "plain", "its time has come", "/waiting?state=due"),
		of("Retrying", "retrying", "warning", inText("next", v.NextRetryAt, v.At), "/waiting?state=retrying"),
		of("Scheduled", "scheduled", "plain", inText("next", v.NextScheduledAt, v.At), "/waiting?state=scheduled"),
		of("Blocked", "blocked", "warning", "behind a message of their key", "/waiting?state=blocked"),
		of("Expired", "expired", "warning", "not published any more", "/waiting?state=expired"),
	}
	for _, rare := range []tile{
		of("Unconfirmed", "unconfirmed", "warning", "the confirm is late", "/waiting?state=unconfirmed"),
		of("Locked", "locked", "plain", "usually being published", "/waiting?state=locked"),
		of("Newer version", "newer_version", "warning", "for a newer relay", "/waiting?state=newer_version"),
	} {
		if rare.Level != "quiet" {
			tiles = append(tiles, rare)
		}
	}
	died := agoText("newest", v.NewestDeadLetterAt, v.At)
	tiles = append(tiles, of("Dead", "dead_letters", "bad", died, "/dead-letters"))
	if published := s.published(); published != nil {
		tiles = append(tiles, *published)
	}
	return tiles
}

// published returns nil if the number is unknown.
func (s sample) published() *tile {
	switch r := s.view.Relay; {
	case s.kept:
		return new(newTile("Published", s.recent, "good", "in the last hour", "/published"))
	case r != nil && r.Error == nil:
		count := operator.Count{N: r.Published, Precision: operator.Exact}
		return new(newTile("Published", count, "good", "since the relay started", "/tail"))
	}
	return nil
}

// newTile returns a tile. The note of an empty one would say nothing.
func newTile(name string, count operator.Count, level, note, link string) tile {
	t := tile{name, tileText(count), note, link, level}
	if count.N == 0 && count.Precision == operator.Exact {
		t.Level, t.Note = "quiet", ""
	}
	return t
}

// tileText is show.Count in a few characters.
func tileText(c operator.Count) string {
	switch c.Precision {
	case operator.AtLeast:
		return show.Number(c.N) + "+"
	case operator.Estimate:
		return "~" + show.Number(c.N)
	case operator.Unknown:
		return "?"
	}
	return show.Number(c.N)
}

func oldestText(v show.Stats) string {
	if v.OldestPendingSeconds == nil {
		return ""
	}
	return "oldest " + show.Duration(time.Duration(*v.OldestPendingSeconds*float64(time.Second)))
}

func inText(word string, at *time.Time, now time.Time) string {
	if at == nil {
		return ""
	}
	return word + " in " + show.Duration(at.Sub(now))
}

func agoText(word string, at *time.Time, now time.Time) string {
	if at == nil {
		return ""
	}
	return word + " " + show.Duration(now.Sub(*at)) + " ago"
}

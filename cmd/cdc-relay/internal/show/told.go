package show

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/relay"
)

// Relay is a relay of the outbox: who it is, the settings that other commands need, and what only its memory knows.
// None of them can contain a secret.
type Relay struct {
	Host    string `json:"host"`
	PID     int    `json:"pid"`
	Version string `json:"version"`
	// Since is when the relay got its role, Seen when it told this.
	Since time.Time `json:"since"`
	Seen  time.Time `json:"seen"`
	// Works: it was seen lately.
	Works bool `json:"works"`
	relay.Report
	// Settings are texts by the names of the flags.
	Settings map[string]string `json:"settings"`

	unseen time.Duration
}

// Name names the relay in a sentence.
func (r Relay) Name() string {
	return fmt.Sprintf("relay %d on host %s", r.PID, OrElse(Printable(r.Host), "?"))
}

// Leads reports whether the relay publishes, or would if the servers let it.
func (r Relay) Leads() bool {
	return r.Works && !slices.Contains([]string{"standby", "starting", "stopping"}, r.Role)
}

// order is the place among Relays: leaders first, and those that do not work last.
func (r Relay) order() int {
	switch {
	case r.Leads():
		return 0
	case r.Works:
		return 1
	}
	return 2
}

// hasNoAnswers reports whether the publisher is connected, and has given no result for long.
func (r Relay) hasNoAnswers() bool {
	return r.Phase == publish.Ready.String() && r.silent() > noAnswersAfter
}

func (r Relay) silent() time.Duration { return time.Duration(r.SilentSeconds * float64(time.Second)) }

// noAnswersAfter is when a publisher without results is a finding. A slow handler may need some seconds.
const noAnswersAfter = 10 * time.Second

// undeleted returns why a published row cannot be deleted; nil: it is none.
func (r Relay) undeleted(id int64) *relay.AsideRow {
	if !slices.Contains(r.Aside.IDs, id) {
		return nil
	}
	for i, row := range r.Aside.First {
		if row.ID == id {
			return &r.Aside.First[i]
		}
	}
	return &relay.AsideRow{ID: id, Published: true, Error: "as of row " + strconv.FormatInt(r.Aside.IDs[0], 10)}
}

// relayOf reads a row. What a newer relay tells in another form is left out.
func relayOf(row operator.Relay) Relay {
	r := Relay{
		Host: row.Host, PID: row.PID, Version: row.Version, Since: row.Since.UTC(), Seen: row.Seen.UTC(),
		Works: row.Unseen < operator.SeenLately, unseen: row.Unseen,
	}
	_ = json.Unmarshal(row.Settings, &r.Settings)
	_ = json.Unmarshal(row.State, &r.Report)
	return r
}

// Relays are those of an outbox: those that work first, and of those the leaders.
type Relays []Relay

// Working returns those that were seen lately.
func (all Relays) Working() Relays {
	return slices.DeleteFunc(slices.Clone(all), func(r Relay) bool { return !r.Works })
}

// Leading returns the leaders, one for each shard.
func (all Relays) Leading() Relays {
	return slices.DeleteFunc(slices.Clone(all), func(r Relay) bool { return !r.Leads() })
}

// NotStreaming is a relay that works and cannot stream, and the part that says why; "": none.
func (all Relays) NotStreaming() (name string, stream relay.Part) {
	for _, r := range all.Working() {
		for _, part := range r.Parts {
			if part.Name == "stream" && !part.Ready {
				part.Detail = strings.TrimPrefix(part.Detail, "not streaming: ")
				return r.Name(), part
			}
		}
	}
	return "", relay.Part{}
}

// Failing says which relays cannot work on the tables, and maps that to what to do.
func (all Relays) Failing() map[string]string {
	failing := map[string]string{}
	for _, r := range all.Working() {
		r.findings(func(is Condition, text, detail, fix string) {
			if is == Stopped || is == DatabaseFails {
				failing[strings.Join(compact(r.Name(), text, detail), ": ")] = fix
			}
		})
	}
	return failing
}

// notDeleted are the ids of published rows that no relay can delete.
func (all Relays) notDeleted() (ids []int64) {
	for _, r := range all.Working() {
		ids = append(ids, r.Aside.IDs...)
	}
	return ids
}

// missedFor is how long a relay that does not work is missed. Then it is probably gone for good.
const missedFor = time.Hour

// Missed says which relays were killed or hang.
func (all Relays) Missed() (texts []string) {
	for _, r := range all {
		if !r.Works && r.unseen < missedFor {
			texts = append(texts, fmt.Sprintf("%s was last seen %s ago", r.Name(), Duration(r.unseen)))
		}
	}
	return texts
}

// shared are the version and the settings that all relays of an outbox should have.
func (r Relay) shared() map[string]string {
	all := map[string]string{"version": r.Version}
	for name, text := range r.Settings {
		if name != "shard" {
			all["--"+name] = text
		}
	}
	return all
}

// Differences says in which version and settings the relays that work differ, each with two relays. Same compares two
// texts of a setting.
func (all Relays) Differences(same func(name, a, b string) bool) (texts []string) {
	shown := func(r Relay, text string) string { return r.Name() + " has " + OrElse(Shortened(text, 40), "''") }
	said := map[string]bool{}
	all = all.Working()
	for _, r := range all {
		first, other := all[0].shared(), r.shared()
		union := maps.Clone(first)
		maps.Copy(union, other)
		for _, name := range slices.Sorted(maps.Keys(union)) {
			a, b := first[name], other[name]
			if said[name] || same(strings.TrimPrefix(name, "--"), a, b) {
				continue
			}
			said[name] = true
			texts = append(texts, "the relays differ in "+Printable(name)+": "+shown(all[0], a)+", "+shown(r, b))
		}
	}
	return texts
}

// Settings are those of the relays.
type Settings struct {
	*relay.Config
	// Told are the settings that a relay told; nil: none did.
	Told  map[string]string
	given func(name string) (text string, given bool)
	// readable: the role may read the table of relays.
	readable bool
	// Mute are roles whose relays run and may not tell it.
	Mute []string
}

// byDefault remarks that a setting is only the default, because no relay told its own.
func (s Settings) byDefault(name string) string {
	if s.Told != nil || s.given == nil {
		return ""
	}
	if _, given := s.given(name); given {
		return ""
	}
	return " (the default of --" + name + ": no relay tells its own)"
}

// Owner knows what the user gave.
type Owner interface {
	// Given returns what the user gave for the setting of this name.
	Given(name string) (text string, given bool)
	// With returns the settings of the relays: those that the user gave, then those that a relay told, then the
	// defaults. Told may be nil. Notes say what the user should know about the differences.
	With(told map[string]string) (cfg *relay.Config, notes []string)
	// Same reports whether two texts of a setting mean the same.
	Same(name, a, b string) bool
}

// Source reads what the relays tell. Several goroutines may use it.
type Source struct {
	owner Owner
	tell  func(note string)
	// Own is the relay that looks at itself, in place of its row; nil: none does.
	Own func() Relay
	mu  struct {
		sync.Mutex
		known Settings
		noted string
	}
}

// NewSource returns a source that has read nothing yet. Tell gets a note for the user in one line, once for each
// change.
func NewSource(owner Owner, tell func(note string)) *Source {
	s := &Source{owner: owner, tell: tell}
	s.learn(nil, nil, "")
	return s
}

// Known returns the settings of the last question.
func (s *Source) Known() Settings {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.known
}

// Ask reads the relays, and the settings to use in any case.
func (s *Source) Ask(ctx context.Context, tables *operator.Tables) (Relays, Settings) {
	return s.Take(tables.Relays(ctx))
}

// Take is Ask with an answer.
func (s *Source) Take(rows []operator.Relay, mute []string, err error) (Relays, Settings) {
	var all, own Relays
	if s.Own != nil {
		own = Relays{s.Own()}
	}
	for _, row := range rows {
		if s.Own == nil || row.PID != own[0].PID || row.Host != own[0].Host {
			all = append(all, relayOf(row))
		}
	}
	// The newest leader comes first: the one before may have died a moment ago.
	slices.SortStableFunc(all, func(a, b Relay) int {
		return cmp.Or(cmp.Compare(a.order(), b.order()), b.Since.Compare(a.Since))
	})
	all = append(own, all...)
	note := ""
	if err != nil {
		note = "what the relays do is unknown: " + OneLine(err.Error())
		if hint := problem.Hint(err); hint != "" {
			note += ": " + hint
		}
	}
	return all, s.learn(all.Working(), mute, note)
}

// learn merges what a relay told with what the user gave. Relays of shards differ in the shard.
func (s *Source) learn(all Relays, mute []string, note string) Settings {
	known := Settings{readable: note == "", Mute: mute, given: s.owner.Given}
	if len(all) > 0 {
		shard, given := s.owner.Given("shard")
		n := max(0, slices.IndexFunc(all, func(r Relay) bool { return given && r.Settings["shard"] == shard }))
		known.Told = all[n].Settings
	}
	cfg, notes := s.owner.With(known.Told)
	known.Config = cfg
	if note != "" {
		notes = append([]string{note}, notes...)
	}
	note = strings.Join(notes, "; ")
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.known = known; note != "" && note != s.mu.noted {
		s.tell(note)
	}
	s.mu.noted = note
	return known
}

// Fixed is an Owner whose settings no relay changes.
type Fixed struct{ Config *relay.Config }

// Given implements Owner.
func (f Fixed) Given(string) (string, bool) { return "", true }

// With implements Owner.
func (f Fixed) With(map[string]string) (*relay.Config, []string) { return f.Config, nil }

// Same implements Owner.
func (f Fixed) Same(_, a, b string) bool { return a == b }

package show

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/relay"
)

// Told is what a relay tells about itself at /settings: which relay it is, the settings that other commands need, and
// what only its memory knows. None of them can contain a secret.
type Told struct {
	Version  string            `json:"version"`
	Instance string            `json:"instance"` // host:pid
	Database operator.Database `json:"database"`
	Table    string            `json:"table"`
	// Settings are texts by the names of the flags. Those that are not texts are ignored.
	Settings texts `json:"settings"`
	State    State `json:"state"`
}

// State is the state of a relay.
type State struct {
	Ready bool `json:"ready"`
	// Role is that of relay.Health.
	Role  string       `json:"role"`
	Parts []relay.Part `json:"parts"`
	// Phase is the publisher's, Detail its last error, and Since when the phase began.
	Phase  string    `json:"publisher"`
	Detail string    `json:"publisher_detail"`
	Since  time.Time `json:"publisher_since"`
	// Breaker is closed, open or half_open; empty: the publisher has none.
	Breaker string `json:"breaker"`
	// SilentSeconds is for how long the publisher has had messages and given no result.
	SilentSeconds float64 `json:"silent_seconds"`
	// Stopped: nothing is published, because rows of published messages cannot be deleted.
	Stopped bool        `json:"stopped"`
	Aside   relay.Aside `json:"set_aside"`
}

// StateOf returns the state for these facts.
func StateOf(h relay.Health) State {
	return State{
		Ready: h.Ready, Role: h.Role, Parts: h.Parts,
		Phase: h.Publisher.Phase.String(), Detail: h.Publisher.Detail, Since: h.Publisher.Since.UTC(),
		Breaker: h.Publisher.Breaker, SilentSeconds: seconds(h.Silent), Stopped: h.Stopped, Aside: h.Aside,
	}
}

// hasNoAnswers reports whether the publisher is connected, and has given no result for long.
func (s State) hasNoAnswers() bool {
	return s.Phase == publish.Ready.String() && s.silent() > noAnswersAfter
}

func (s State) silent() time.Duration { return time.Duration(s.SilentSeconds * float64(time.Second)) }

// noAnswersAfter is when a publisher without results is a finding. A slow handler may need some seconds.
const noAnswersAfter = 10 * time.Second

// undeleted returns why a published row cannot be deleted; nil: it is none.
func (s State) undeleted(id int64) *relay.AsideRow {
	if !slices.Contains(s.Aside.IDs, id) {
		return nil
	}
	for i, row := range s.Aside.First {
		if row.ID == id {
			return &s.Aside.First[i]
		}
	}
	return &relay.AsideRow{ID: id, Published: true, Error: "as of row " + strconv.FormatInt(s.Aside.IDs[0], 10)}
}

type texts map[string]string

// UnmarshalJSON implements json.Unmarshaler.
func (t *texts) UnmarshalJSON(data []byte) error {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		return err
	}
	*t = make(texts)
	for name, value := range all {
		var text *string
		if json.Unmarshal(value, &text) == nil && text != nil {
			(*t)[name] = *text
		}
	}
	return nil
}

// mostTold limits the bytes of the settings.
const mostTold = 64 << 10

// told asks for the settings. It returns nil and the reason if the relay does not tell them.
func (l *LiveRelay) told(ctx context.Context) (*Told, string) {
	text, status, err := l.get(ctx, "/settings", mostTold)
	switch {
	case err != nil:
		return nil, fmt.Sprintf("the relay at %s does not tell its settings: %s", l.address, OneLine(err.Error()))
	case status == http.StatusNotFound:
		return nil, fmt.Sprintf("the relay at %s is too old to tell its settings", l.address)
	}
	var told Told
	if status != http.StatusOK || json.Unmarshal(text, &told) != nil || told.Table == "" {
		return nil, fmt.Sprintf("the relay at %s tells its settings in an unknown form", l.address)
	}
	return &told, ""
}

// foreign is the error of a relay that publishes another table.
type foreign struct{ publishes, text string }

func (f *foreign) Error() string { return f.text }

// mine reports whether the relay publishes this table of this database.
func (t *Told) mine(address string, table outbox.Table, here operator.Database) error {
	other := ""
	switch {
	case t.Table != table.String():
		other = t.Table
	case t.Database.Name != "" && here.Name != "" && t.Database.Name != here.Name:
		other = t.Table + " of database " + t.Database.Name
	case t.Database.System != "" && here.System != "" && t.Database.System != here.System:
		other = t.Table + " of another Postgres server"
	}
	if other == "" {
		return nil
	}
	other = Shortened(other, 200)
	const text = "the relay at %s publishes %s: --http-addr should be the address of a relay of %s"
	return &foreign{other, fmt.Sprintf(text, address, other, table)}
}

// Settings are those of the relays.
type Settings struct {
	*relay.Config
	// Told is what the relay told; nil: nothing, because of Missing.
	Told    *Told
	Missing string
	given   func(name string) bool
}

// chosen reports whether the user gave the setting of this name.
func (s Settings) chosen(name string) bool { return s.given != nil && s.given(name) }

// byDefault remarks that a setting is only the default, because no relay told its own.
func (s Settings) byDefault(name string) string {
	if s.Missing == "" || s.given(name) {
		return ""
	}
	return fmt.Sprintf(" (the default of --%s: %s)", name, s.Missing)
}

// Outbox is what tells its relays from those of others.
type Outbox interface {
	Table() outbox.Table
	// Database is called only if a relay has answered.
	Database(ctx context.Context) (operator.Database, error)
}

// Owner knows what the user gave.
type Owner interface {
	// Given reports whether the user gave the setting of this name.
	Given(name string) bool
	// With returns the settings of the relays: those that the user gave, then those that a relay told, then the
	// defaults. Told may be nil. Notes say what the user should know about the differences.
	With(told map[string]string) (cfg *relay.Config, notes []string)
}

// Source asks the relay at an address for its settings, and for the numbers that only it knows. Several goroutines may
// use it.
type Source struct {
	live  *LiveRelay // nil: no relay is asked
	owner Owner
	tell  func(note string)
	mu    struct {
		sync.Mutex
		known Settings
		noted string
	}
}

// NewSource returns a source that has asked nobody yet. Tell gets a note for the user in one line, once for each
// change.
func NewSource(httpAddr string, owner Owner, tell func(note string)) *Source {
	s := &Source{live: NewLiveRelay(httpAddr), owner: owner, tell: tell}
	s.learn(nil, "no relay was asked")
	return s
}

// Known returns the result of the last question.
func (s *Source) Known() Settings {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.known
}

// Ask asks the relay. The reading is nil, and the error says why, if it does not answer or publishes another table. The
// settings are those to use in any case.
func (s *Source) Ask(ctx context.Context, of Outbox) (*Reading, Settings, error) {
	if s.live == nil {
		return nil, s.learn(nil, "no relay was asked"), nil
	}
	reading, err := s.live.Read(ctx)
	if err == nil && reading.told != nil {
		here, _ := of.Database(ctx) // without it, only the name of the table is compared
		err = reading.told.mine(s.live.address, of.Table(), here)
	}
	var other *foreign
	switch {
	case errors.As(err, &other):
		return nil, s.learn(nil, "no relay of this table answered", other.text), err
	case err != nil:
		if known := s.Known(); known.Told != nil { // the relay ended, and its settings are the best that is known
			return nil, known, err
		}
		return nil, s.learn(nil, "no relay answered at "+s.live.address), err
	}
	return reading, s.learn(reading.told, reading.silent), nil
}

// learn merges what a relay told with what the user gave.
func (s *Source) learn(told *Told, missing string, notes ...string) Settings {
	known := Settings{Told: told, Missing: missing, given: s.owner.Given}
	var names map[string]string
	if told != nil {
		names = told.Settings
	}
	cfg, more := s.owner.With(names)
	known.Config = cfg
	note := strings.Join(append(notes, more...), "; ")
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
func (f Fixed) Given(string) bool { return true }

// With implements Owner.
func (f Fixed) With(map[string]string) (*relay.Config, []string) { return f.Config, nil }

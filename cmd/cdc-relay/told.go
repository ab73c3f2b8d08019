package main

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/relay"
)

// asking prepares the flags of a command that asks the running relay for its settings. Nobody needs to give these, so
// they come last on the help page.
func asking(picked []cli.Flag) []cli.Flag {
	for _, f := range settings.FlagsOf(picked) {
		f.Advanced = f.Shared
	}
	return picked
}

// source asks the relay at --http-addr.
func (p *process) source(cfg *config) *show.Source { return show.NewSource(cfg.httpAddr, cfg, p.note) }

// note prints a remark of one line.
func (p *process) note(text string) { fmt.Fprintln(p.terminal.Err, "note: "+text) }

// Given implements show.Owner.
func (c *config) Given(name string) bool {
	_, given := c.given[name]
	return given
}

// With implements show.Owner.
func (c *config) With(told map[string]string) (*relay.Config, []string) {
	merged, notes := c.with(told)
	return &merged.relay, notes
}

// with returns the settings that the user gave, then those that a relay told, then the defaults. What a relay told and
// this command cannot accept is ignored, and noted: the relay may be newer.
func (c *config) with(told map[string]string) (*config, []string) {
	merged := *c // setters replace slices, and change none
	var others, unknown, notes []string
	for _, s := range c.needs() {
		text, isTold := told[s.Name]
		if own, given := c.given[s.Name]; given || !isTold {
			if isTold && !same(s, own.Text, text) {
				others = append(others, difference(s, own.Text, text))
			}
			continue
		}
		next := merged
		if err := s.Take(&next, text); err != nil || next.relay.Validate() != nil {
			unknown = append(unknown, fmt.Sprintf("--%s %s", s.Name, shownText(text)))
			continue
		}
		merged = next
	}
	if len(others) > 0 {
		notes = append(notes, usesNote+strings.Join(others, ", "))
	}
	if len(unknown) > 0 {
		notes = append(notes, "this command ignores settings of the relay: "+strings.Join(unknown, ", "))
	}
	return &merged, notes
}

// needs are the settings of the command that a relay tells.
func (c *config) needs() []setting {
	return slices.DeleteFunc(allSettings(), func(s setting) bool {
		return !s.Shared || !slices.Contains(c.flags, s.Name)
	})
}

const usesNote = "this command uses "

func difference(s setting, own, relays string) string {
	return fmt.Sprintf("--%s %s, not the relay's %s", s.Name, shownText(own), shownText(relays))
}

// compared is a command that judges its own settings, and only notes how those of the running relay differ.
type compared struct {
	*config
	here *databaseCache
}

// Table implements show.Outbox.
func (c compared) Table() outbox.Table { return c.relay.Table }

// Database implements show.Outbox. It connects: the command has no session yet.
func (c compared) Database(ctx context.Context) (operator.Database, error) {
	return c.here.get(ctx), nil
}

// With implements show.Owner.
func (c compared) With(told map[string]string) (*relay.Config, []string) {
	var others []string
	for _, s := range c.needs() {
		own := settings.Effective(s.Info, c.given, asGiven).Value
		text, isTold := told[s.Name]
		if isTold && own != nil && !same(s, *own, text) {
			others = append(others, difference(s, *own, text))
		}
	}
	if len(others) == 0 {
		return &c.relay, nil
	}
	return &c.relay, []string{usesNote + strings.Join(others, ", ")}
}

// compare notes how the settings of the command differ from those of the running relay.
func (p *process) compare(ctx context.Context, cfg *config) {
	own := compared{cfg, p.newDatabaseCache(cfg, "check")}
	_, _, _ = show.NewSource(cfg.httpAddr, own, p.note).Ask(ctx, own) // no relay has to run
}

func asGiven(_, text string) string { return text }

// asRelay returns the settings with those of the running relay, if it answers.
func (p *process) asRelay(ctx context.Context, s *session) *config {
	_, known, _ := p.source(s.cfg).Ask(ctx, s.Tables) // without an answer, the command uses its own
	if known.Told == nil {
		return s.cfg
	}
	merged, _ := s.cfg.with(known.Told.Settings)
	return merged
}

// same reports whether both texts mean the same value.
func same(s setting, a, b string) bool {
	first, second := defaultConfig(), defaultConfig()
	return s.Take(first, a) == nil && s.Take(second, b) == nil && reflect.DeepEqual(first, second)
}

func shownText(text string) string { return show.OrElse(show.Shortened(text, 100), "''") }

// telling returns what the relay tells about itself at /settings.
func (p *process) telling(cfg *config) func(context.Context) show.Told {
	host, _ := os.Hostname() // "" if it is unknown
	fixed := show.Told{
		Version:  buildInfo().Version,
		Instance: fmt.Sprintf("%s:%d", host, os.Getpid()),
		Table:    cfg.relay.Table.String(),
		Settings: make(map[string]string),
	}
	for _, s := range allSettings() {
		if !s.Shared {
			continue
		}
		if v := settings.Effective(s.Info, cfg.given, asGiven).Value; v != nil {
			fixed.Settings[s.Name] = *v
		}
	}
	here := p.newDatabaseCache(cfg, "settings")
	return func(ctx context.Context) show.Told {
		told := fixed
		told.Database = here.get(ctx)
		return told
	}
}

// databaseCache knows the database of the relay. The address may lead to another server later, so it asks again after a
// while.
type databaseCache struct {
	open  func(context.Context) (*session, error)
	turn  chan struct{} // a value there is the right to use the next fields
	known operator.Database
	asked time.Time
}

func (p *process) newDatabaseCache(cfg *config, command string) *databaseCache {
	return &databaseCache{turn: make(chan struct{}, 1), open: func(ctx context.Context) (*session, error) {
		return p.openSession(ctx, cfg, command)
	}}
}

const (
	databaseKnownFor = time.Minute
	// databaseWait is how long a request for the settings waits for the database. It answers without it then.
	databaseWait = time.Second
)

// get returns the zero value if the database cannot be asked in time.
func (d *databaseCache) get(ctx context.Context) operator.Database {
	ctx, cancel := context.WithTimeout(ctx, databaseWait)
	defer cancel()
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return operator.Database{}
	}
	if time.Since(d.asked) < databaseKnownFor {
		return d.known
	}
	s, err := d.open(ctx)
	if err != nil {
		return operator.Database{}
	}
	defer closeConn(ctx, s.conn)
	if known, err := s.Database(ctx); err == nil {
		d.known, d.asked = known, time.Now()
		return known
	}
	return operator.Database{}
}

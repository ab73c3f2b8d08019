package main

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/relay"
)

// asking prepares the flags of a command that reads the settings of the relays. Nobody needs to give these, so they
// come last on the help page.
func asking(picked []cli.Flag) []cli.Flag {
	for _, f := range settings.FlagsOf(picked) {
		f.Advanced = f.Shared
	}
	return picked
}

// source reads what the relays tell.
func (p *process) source(cfg *config) *show.Source { return show.NewSource(cfg, p.note) }

// note prints a remark of one line.
func (p *process) note(text string) { fmt.Fprintln(p.terminal.Err, "note: "+text) }

// Given implements show.Owner.
func (c *config) Given(name string) (text string, given bool) {
	value, given := c.given[name]
	return value.Text, given
}

// Same implements show.Owner.
func (c *config) Same(name, a, b string) bool {
	return a == b || slices.ContainsFunc(allSettings(), func(s setting) bool { return s.Name == name && same(s, a, b) })
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
				others = append(others,
					fmt.Sprintf("--%s %s, not the relay's %s", s.Name, shownText(own.Text), shownText(text)))
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
		notes = append(notes, "this command uses "+strings.Join(others, ", "))
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

// compared is a command that judges its own settings, and only notes how those of the running relays differ.
type compared struct{ *config }

// With implements show.Owner.
func (c compared) With(told map[string]string) (*relay.Config, []string) {
	own := *c.config
	own.given = maps.Clone(c.given)
	for _, s := range c.needs() {
		if v := settings.Effective(s.Info, c.given, asGiven).Value; v != nil { // a default counts as given
			own.given[s.Name] = settings.Value{Text: *v}
		}
	}
	_, notes := own.with(told)
	return &c.relay, notes
}

// compare returns how check learns what the running relays tell.
func compare(cfg *config, source *show.Source) func(context.Context, pgx.Tx) doctor.Relays {
	return func(ctx context.Context, tx pgx.Tx) doctor.Relays {
		all, known := source.Take(operator.ReadRelays(ctx, tx, cfg.relay.Table))
		name, stream := all.NotStreaming()
		return doctor.Relays{
			Running: len(all.Working()), Differences: all.Differences(cfg.Same), Missed: all.Missed(), Mute: known.Mute,
			NotStreaming: name, Detail: stream.Detail, Fix: stream.Fix, Failing: all.Failing(),
		}
	}
}

func asGiven(_, text string) string { return text }

// same reports whether both texts mean the same value.
func same(s setting, a, b string) bool {
	first, second := defaultConfig(), defaultConfig()
	return s.Take(first, a) == nil && s.Take(second, b) == nil && reflect.DeepEqual(first, second)
}

func shownText(text string) string { return show.OrElse(show.Shortened(text, 100), "''") }

// shared are the settings that the relay tells others, as "config show" prints them, and its brokers without a user.
func (c *config) shared() map[string]string {
	all := make(map[string]string)
	for _, s := range allSettings() {
		if v := settings.Effective(s.Info, c.given, withoutPassword).Value; s.Shared && v != nil {
			all[s.Name] = *v
		}
	}
	if nodes, err := c.rabbitmq.Nodes(); err == nil && c.publisher == "amqp" {
		var brokers []string
		for _, node := range nodes {
			brokers = append(brokers, node.Address()+"/"+node.URI.Vhost)
		}
		slices.Sort(brokers)
		all["amqp-url"] = strings.Join(brokers, ",")
	}
	return all
}

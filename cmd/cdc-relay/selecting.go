package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// selectFlags are the flags of commands that show rows or change many rows.
type selectFlags struct {
	top      int
	limit    int
	after    string
	blocked  bool
	exact    bool
	exitCode bool
	watch    bool
	interval time.Duration
	payload  bool
	dryRun   bool
	bury     bool

	// filter selects rows; only the command line sets it.
	filter operator.Filter
	all    bool
	// copies is for published messages.
	copies operator.Copies
}

func defaultSelectFlags() selectFlags {
	return selectFlags{top: 10, limit: 50, interval: 2 * time.Second}
}

// lookingSettings are the settings of commands that read rows.
func lookingSettings() []setting {
	return []setting{
		settings.Number("top", "10",
			"How many of the most frequent causes of failures to show.", 0, 10_000,
			func(c *config) *int { return &c.selected.top }),
		settings.FlagOnly(settings.Number("limit", "50", "How many to list.", 1, 1_000_000,
			func(c *config) *int { return &c.selected.limit })),
		settings.Switch("exact", "Count every row, however long that takes.",
			func(c *config) *bool { return &c.selected.exact }),
		settings.FlagOnly(settings.Switch("exit-code",
			"Exit with 10 if the verdict is a warning, with 11 if it is critical.",
			func(c *config) *bool { return &c.selected.exitCode })),
		settings.Switch("watch", "Print again and again, until Ctrl-C.",
			func(c *config) *bool { return &c.selected.watch }),
		settings.Parsed("interval", "DURATION", "2s", "How often --watch prints.",
			func(c *config) *time.Duration { return &c.selected.interval }, parseInterval),
		settings.FlagOnly(settings.Switch("payload", "Show bodies. If redacted_payload is set, it is shown instead.",
			func(c *config) *bool { return &c.selected.payload })),
		settings.FlagOnly(settings.Switch("dry-run", "Print the number of rows and change nothing.",
			func(c *config) *bool { return &c.selected.dryRun })),
	}
}

func parseInterval(text string) (time.Duration, error) {
	d, err := settings.ParseDuration(text)
	if err != nil || d < 100*time.Millisecond {
		return 0, fmt.Errorf("%q: want a duration of at least 100ms", text)
	}
	return d, nil
}

// filterSettings select rows. They are flags only: a value left in a shell or a file must not change what is deleted.
func filterSettings() []setting {
	of := func(name, placeholder, usage string, set func(f *operator.Filter, text string) error) setting {
		return settings.FlagOnly(settings.Func(name, placeholder, "", usage,
			func(c *config, text string) error { return set(&c.selected.filter, text) }))
	}
	return []setting{
		settings.Repeats(of("id", "ID,…", "Only these: ids of rows, message_ids, or ids of Celery tasks.",
			func(f *operator.Filter, text string) error { return addNames(f, strings.Split(text, ",")) })),
		of("routing-key", "PATTERN",
			`Only messages with this routing key, such as 'orders.*' or 'orders.#'. `+
				`* is one word, # zero or more words; \* and \# are the characters.`,
			func(f *operator.Filter, text string) error {
				pattern, err := operator.ParsePattern(text)
				f.RoutingKey = &pattern
				return err
			}),
		settings.Repeats(of("header", "NAME=PATTERN,…",
			"Only messages with these headers, such as 'task=orders.*', with the wildcards of --routing-key. "+
				"An empty value: those without the header.",
			func(f *operator.Filter, text string) (err error) {
				f.Headers, err = operator.ParseHeaders(text)
				return err
			})),
		of("exchange", "NAME", "Only messages to this exchange; "+operator.DefaultExchange+": the default exchange; "+
			"'': those that leave it to the relay.",
			func(f *operator.Filter, text string) error { f.Exchange = &text; return nil }),
		of("ordering-key", "KEY", "Only messages with this ordering key.",
			func(f *operator.Filter, text string) error { f.OrderingKey = &text; return nil }),
		settings.Offering(of("reason", "CODE",
			"Only messages that failed for this reason (unroutable, nack, too_large, …): "+
				"the code of a dead letter, or of its last error.",
			func(f *operator.Filter, text string) error { f.Reason = &text; return nil }), reasonCodes()),
		of("older-than", "AGE",
			"Only messages that were created, died or were published, depending on their state, at "+
				"least this long ago (90m, 7d, 2w), or until this time ("+momentForms+").",
			func(f *operator.Filter, text string) (err error) {
				f.OlderThan, f.Until, err = settings.ParseMoment(text)
				return err
			}),
		of("newer-than", "AGE", "The same for less than this long ago, or after this time.",
			func(f *operator.Filter, text string) (err error) {
				f.NewerThan, f.After, err = settings.ParseMoment(text)
				return err
			}),
	}
}

func deadLetterSetting() setting {
	return settings.FlagOnly(settings.Switch("dead-letter",
		"Move waiting messages to the dead letters instead, and let their ordering key go on.",
		func(c *config) *bool { return &c.selected.bury }))
}

func allSetting() setting {
	return settings.FlagOnly(settings.Switch("all", "All messages; required if no other filter is given.",
		func(c *config) *bool { return &c.selected.all }))
}

// momentForms are the forms of a time, for help pages.
const momentForms = "2026-11-01 in UTC, 2026-11-01T10:00Z, 2026-11-01T10:00:00+02:00"

// stateSetting selects rows by one of these states; without any, by one of all.
func stateSetting(usage string, states ...operator.State) setting {
	if len(states) == 0 {
		states = operator.States()
	}
	words := each(states, func(state operator.State) string { return string(state) })
	return settings.FlagOnly(settings.Offering(settings.Func("state", "STATE", "",
		usage+" "+strings.Join(words, ", ")+".",
		func(c *config, text string) error {
			c.selected.filter.State = operator.State(text)
			return settings.OneOf(text, words...)
		}), words))
}

func addNames(f *operator.Filter, texts []string) error {
	for _, text := range texts {
		name, err := operator.ParseName(strings.TrimSpace(text))
		if err != nil {
			return err
		}
		f.Add(name)
	}
	return nil
}

// resolveNaming reads the settings of a command that also accepts names of messages.
func (p *process) resolveNaming(c *cli.Context) (*config, []string, error) {
	arguments, err := argumentsOf(c)
	if errors.Is(err, flag.ErrHelp) {
		return nil, nil, errors.Join(cli.ShowSubcommandHelp(c), flag.ErrHelp)
	}
	if err != nil {
		return nil, nil, err
	}
	cfg, err := p.settingsFor(c)
	if err != nil {
		return nil, nil, err
	}
	return cfg, arguments, cfg.validate()
}

// resolveNamed is resolveNaming for a command on rows: the names are a filter.
func (p *process) resolveNamed(c *cli.Context) (*config, error) {
	cfg, arguments, err := p.resolveNaming(c)
	if err != nil {
		return nil, err
	}
	if err := addNames(&cfg.selected.filter, arguments); err != nil {
		return nil, usagef("%s: %s", commandPath(c), err)
	}
	return cfg, nil
}

// resolveSelecting reads the settings of a command that changes rows. The user must say which rows: without --state by
// IDs, with it also by filters or --all.
func (p *process) resolveSelecting(c *cli.Context) (*config, error) {
	cfg, err := p.resolveNamed(c)
	if err != nil {
		return nil, err
	}
	filter := cfg.selected.filter
	for _, f := range settings.FlagsOf(c.Command.Flags) {
		if f.Name == "state" {
			if err := settings.OneOf(string(filter.State), f.Choices()...); filter.State != "" && err != nil {
				return nil, usagef("--state: %s", err)
			}
		}
		isCopy := slices.ContainsFunc(copySettings(), func(s setting) bool { return s.Name == f.Name })
		if isCopy && f.IsSet() && filter.State != operator.Published {
			return nil, usagef("%s: --%s is for published messages: add --state published", c.Command.Name, f.Name)
		}
	}
	everything := filter.In("").Everything()
	switch {
	case filter.State == "" && (cfg.selected.all || !filter.OnlyNamed()):
		return nil, usagef("%s: say which: an ID, or a state, for example --state dead", c.Command.Name)
	case everything && !cfg.selected.all:
		return nil, usagef("%s: say which: an ID, filters such as --routing-key, or --all", c.Command.Name)
	case !everything && cfg.selected.all:
		return nil, usagef("%s: --all and a filter exclude each other", c.Command.Name)
	}
	return cfg, nil
}

// noneFound is the error of a command whose filter matched nothing, or nil if that is a normal result.
func (c *config) noneFound(what string) error {
	if f := c.selected.filter; f.Named() {
		missing := failure.NotFound(fmt.Errorf("no %s has one of these IDs", what))
		return failure.WithHint(missing, "cdc-relay explain "+f.Names()[0].String()+c.tableFlag())
	}
	return c.unknownReason(what)
}

// noteWildcards prints wildcardNote, for a command that found nothing.
func (p *process) noteWildcards(cfg *config) {
	if note := show.WildcardNote(cfg.selected.filter, "--"); note != "" {
		fmt.Fprintln(p.terminal.Err, "note: "+note)
	}
}

// none returns noneFound, and notes wildcards.
func (p *process) none(cfg *config, what string) error {
	p.noteWildcards(cfg)
	return cfg.noneFound(what)
}

// unknownReason is the error for a reason that no row has and that is no code. The publisher of an embedding program
// may have its own codes, so only the tables can tell.
func (c *config) unknownReason(what string) error {
	reason := c.selected.filter.Reason
	if reason == nil || slices.Contains(reasonCodes(), *reason) {
		return nil
	}
	return usagef("--reason: no %s has %q; the codes are %s", what, *reason, strings.Join(reasonCodes(), ", "))
}

// oneName returns the message that a command is about.
func oneName(c *cli.Context, arguments []string) (operator.Name, error) {
	if len(arguments) != 1 {
		return operator.Name{}, usagef("%s: want one ID: that of a row, or a message_id", commandPath(c))
	}
	name, err := operator.ParseName(strings.TrimSpace(arguments[0]))
	if err != nil {
		return name, usagef("%s: %s", commandPath(c), err)
	}
	return name, nil
}

// session is a database connection and what a command needs to work on the tables.
type session struct {
	*operator.Tables
	conn *pgx.Conn
	cfg  *config
	// around is only known to commands that need it.
	around show.Surroundings
}

// withSession connects and calls do.
func (p *process) withSession(c *cli.Context, cfg *config, do func(context.Context, *session) error) error {
	s, err := p.openSession(c.Context, cfg, c.Command.Name)
	if err != nil {
		return err
	}
	defer closeConn(c.Context, s.conn)
	return do(c.Context, s)
}

// openSession opens a connection. The caller closes it.
func (p *process) openSession(ctx context.Context, cfg *config, command string) (*session, error) {
	conn, err := connect(ctx, cfg.database(), command, pgdial.CatalogFirst)
	if err != nil {
		return nil, err
	}
	tables, err := operator.New(ctx, conn, cfg.relay.Table, cfg.relay.TableOwner)
	if err != nil {
		closeConn(ctx, conn)
		return nil, err
	}
	return &session{Tables: tables, conn: conn, cfg: cfg}, nil
}

// with is the action of a command with a session, which reads its settings by resolve.
func (p *process) with(
	resolve func(*cli.Context) (*config, error), do func(context.Context, *session) error,
) cli.ActionFunc {
	return func(c *cli.Context) error {
		cfg, err := resolve(c)
		if err != nil {
			return err
		}
		return p.withSession(c, cfg, do)
	}
}

// onNamed is the action of a command that shows one message.
func (p *process) onNamed(do func(context.Context, *session, operator.Name) error) cli.ActionFunc {
	return func(c *cli.Context) error {
		cfg, arguments, err := p.resolveNaming(c)
		if err != nil {
			return err
		}
		name, err := oneName(c, arguments)
		if err != nil {
			return err
		}
		return p.withSession(c, cfg, func(ctx context.Context, s *session) error { return do(ctx, s, name) })
	}
}

// reasonCodes are the codes of docs/delivery.md. The publisher of an embedding program may have others.
func reasonCodes() []string {
	return each(outbox.Reasons(), func(code outbox.Reason) string { return string(code) })
}

func blockedSetting() setting {
	return settings.FlagOnly(settings.Switch("blocked",
		"Only keys whose first row waits for its time, or that a dead letter blocks.",
		func(c *config) *bool { return &c.selected.blocked }))
}

package main

import (
	"context"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/service"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/relay"
)

func (p *process) statsCommand() *cli.Command {
	return &cli.Command{
		Name:      "stats",
		Usage:     "tell whether all is well, what waits, what fails, which relay leads",
		UsageText: "cdc-relay stats [FLAGS]",
		Description: `Begins with the verdict in one sentence, and the command to type if something is wrong. Then it
shows the state of the queue. Counts are exact up to 10,000 rows and estimated beyond, so it
costs the same with ten rows and with ten million; --exact counts all rows. The relays tell
throughput, latency and their settings in a table.

EXAMPLES

  cdc-relay stats --watch
  cdc-relay stats --json | jq .oldest_pending_seconds
  cdc-relay stats --exit-code >/dev/null || echo "look at the outbox"`,
		Flags: asking(describe(flags(
			"top", "exact", "exit-code", "watch", "interval", "json", "database-url", "table", "config",
			"metrics-header", "on-dead-letter", "mode", "slot", "shard"),
			usages{"metrics-header": showHeader})),
		Action: p.with(p.resolveValid, p.stats),
	}
}

// stats prints once, or with --watch until it is stopped.
func (p *process) stats(ctx context.Context, s *session) error {
	cfg := s.cfg
	look := &show.Sampler{
		Source: p.source(cfg), Top: cfg.selected.top, Exact: cfg.selected.exact, Tables: s.Tables,
	}
	if !cfg.selected.watch {
		view, err := look.Take(ctx)
		if err != nil {
			return err
		}
		if cfg.json {
			err = p.terminal.JSON(view)
		} else {
			err = p.showStats(view)
		}
		if level := view.Verdict.Level; err == nil && cfg.selected.exitCode && level != show.Healthy {
			return unwell{level}
		}
		return err
	}
	return p.terminal.Watch(ctx, cfg.selected.interval, func(ctx context.Context) (display func() error, err error) {
		view, err := look.Take(ctx)
		if cfg.json {
			return func() error { return p.terminal.JSONLine(view) }, err
		}
		return func() error { return p.showStats(view) }, err
	})
}

// unwell ends stats --exit-code if all is not well.
type unwell struct{ level show.Level }

func (u unwell) Error() string { return "the verdict is " + string(u.level) }

func (u unwell) exitCode() int {
	if u.level == show.Critical {
		return exitCritical
	}
	return exitWarning
}

// showStats prints the verdict and the table for people.
func (p *process) showStats(v show.Stats) error {
	v.Verdict.Print(p.terminal.Out, p.terminal.Paint)
	g := p.terminal.Table()
	v.Facts(g, v.Settings.Config, p.terminal.Paint)
	if err := g.Write(); err != nil {
		return err
	}
	return p.showFailing(v, v.Settings.MetricsHeader)
}

// showFailing prints the failures with most messages, by a header too if it is not "".
func (p *process) showFailing(v show.Stats, header string) error {
	if len(v.TopFailing) == 0 {
		return nil
	}
	note := ""
	if v.Precision["top_failing"] != operator.Exact {
		note = ", of the rows that come first"
	}
	fmt.Fprintf(p.terminal.Out, "\nfailing most%s\n", note)
	return writeTable(p, show.FailingColumns(header), v.TopFailing)
}

// judge returns how a relay looks at its outbox: as stats does, one request after the other, because each has a
// connection of its own.
func (p *process) judge(cfg *config, r *relay.Relay) service.Judge {
	host, _ := os.Hostname() // as in the row of the relay

	turn := make(chan struct{}, 1)
	return func(ctx context.Context) show.Verdict {
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-ctx.Done():
			return show.Unreadable(cfg.relay.Table, ctx.Err())
		}
		s, err := p.openSession(ctx, cfg, "readyz")
		if err != nil {
			return show.Unreadable(cfg.relay.Table, err)
		}
		defer closeConn(ctx, s.conn)
		own := show.NewSource(show.Fixed{Config: &cfg.relay}, func(string) {})
		own.Own = func() show.Relay {
			return show.Relay{
				Host: host, PID: os.Getpid(), Version: cfg.relay.Version, Works: true, Report: r.Report(),
				Settings: cfg.relay.Settings,
			}
		}
		look := &show.Sampler{Source: own, Tables: s.Tables}
		view, err := look.Take(ctx)
		if err != nil {
			return show.Unreadable(cfg.relay.Table, err)
		}
		return view.Verdict
	}
}

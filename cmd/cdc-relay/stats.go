package main

import (
	"context"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
)

func (p *process) statsCommand() *cli.Command {
	return &cli.Command{
		Name:      "stats",
		Usage:     "show what waits, what fails, which relay leads, and the throughput",
		UsageText: "cdc-relay stats [FLAGS]",
		Description: `Shows the state of the queue. Counts are exact up to 10,000 rows and estimated beyond, so it
costs the same with ten rows and with ten million; --exact counts all rows. Throughput and
latency come from the relay at --http-addr, if it answers.

EXAMPLES

  cdc-relay stats --watch
  cdc-relay stats --format json | jq .oldest_pending_seconds`,
		Flags: describe(flags("top", "exact", "watch", "interval", "format", "on-dead-letter", "mode", "http-addr",
			"database-url", "table", "slot", "shard", "config"), usages{"http-addr": askForNumbers}),
		Action: p.stats,
	}
}

// stats prints once, or with --watch until it is stopped.
func (p *process) stats(c *cli.Context) error {
	cfg, err := p.resolve(c)
	if err != nil {
		return err
	}
	if err := cfg.validate(); err != nil {
		return err
	}
	return p.atDesk(c, cfg, p.showOrWatch)
}

func (p *process) showOrWatch(ctx context.Context, d *desk) error {
	cfg := d.cfg
	look := &statsLook{cfg: cfg, tables: d.Tables, live: newLiveRelay(cfg.httpAddr)}
	if !cfg.looking.watch {
		view, err := look.take(ctx)
		if err != nil {
			return err
		}
		if cfg.format == formatJSON {
			return p.writeJSON(view)
		}
		return p.showStats(cfg, view)
	}
	return p.watch(ctx, cfg.looking.interval, func(ctx context.Context) (show func() error, err error) {
		view, err := look.take(ctx)
		if cfg.format == formatJSON {
			return func() error { return p.writeJSONLine(view) }, err
		}
		return func() error { return p.showStats(cfg, view) }, err
	})
}

// statsLook takes one sample after the other.
type statsLook struct {
	cfg    *config
	tables *operator.Tables
	live   *liveRelay // nil: no relay is queried
	// before is the previous reading of the relay; with --watch, throughput is measured since then.
	before *reading
}

func (l *statsLook) take(ctx context.Context) (statsView, error) {
	first := l.before
	var failed error
	if l.live != nil && first == nil {
		first, failed = l.live.read(ctx)
	}
	s, err := l.tables.Stats(ctx, l.cfg.looking.top, l.cfg.looking.exact, l.cfg.blocks())
	if err != nil {
		return statsView{}, err
	}
	slot, err := l.tables.Slot(ctx, l.cfg.names().Slot)
	if err != nil {
		return statsView{}, err
	}
	view := newStatsView(l.cfg, s, slot)
	if l.live != nil {
		view.Relay = &liveView{Address: l.live.address}
		l.measure(ctx, view.Relay, first, failed)
	}
	return view, ctx.Err()
}

// measure takes two readings at least liveWindow apart.
func (l *statsLook) measure(ctx context.Context, view *liveView, first *reading, failed error) {
	if failed == nil {
		pause := time.NewTimer(liveWindow - time.Since(first.at))
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-ctx.Done():
			return
		}
		var second *reading
		if second, failed = l.live.read(ctx); failed == nil {
			view.fill(first, second, l.before != nil)
			if l.cfg.looking.watch {
				l.before = second
			}
			return
		}
	}
	l.before = nil
	text := oneLine(failed.Error())
	view.Error = &text
}

// watch repeats look until ctx is done, and prints each result when it is complete. On a terminal it overwrites the
// previous one.
func (p *process) watch(ctx context.Context, interval time.Duration, look func(context.Context) (show func() error, err error)) error {
	terminal := isTerminal(p.stdout)
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		show, err := look(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // stopped by the user
		}
		if err != nil {
			return err
		}
		if terminal {
			fmt.Fprint(raw(p.stdout), "\x1b[H\x1b[2J") // clear the screen and go to its top
		}
		if err := show(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

package show

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/relay"
)

// Sampler takes one sample after the other.
type Sampler struct {
	// Source knows the settings of the relays, and asks one of them.
	Source *Source
	// Top is how many of the most frequent failures to show. With Exact, all rows are counted.
	Top   int
	Exact bool
	// Watch: more samples follow, and throughput and latency are measured since the previous one.
	Watch  bool
	Tables *operator.Tables
	// before is the previous reading of the relay.
	before *Reading
}

// judgedKinds is among how many kinds of failure the verdict chooses its examples.
const judgedKinds = 10

// Take returns a sample. It fails if the database does not answer, but not if the relay does not.
func (l *Sampler) Take(ctx context.Context) (Stats, error) {
	first := l.before
	known := l.Source.Known()
	var failed error
	if first == nil {
		first, known, failed = l.Source.Ask(ctx, l.Tables)
	}
	cfg := known.Config
	s, err := l.Tables.Stats(ctx, operator.StatsOptions{
		Groups: operator.GroupOptions{Most: max(l.Top, judgedKinds), Header: cfg.MetricsHeader}, Exact: l.Exact,
		Block: DeadLettersBlock(cfg), NotDeleted: first.notDeleted(),
	})
	if err != nil {
		return Stats{}, err
	}
	slot, err := l.Tables.Slot(ctx, cfg.Names().Slot)
	if err != nil {
		return Stats{}, err
	}
	view := newStats(cfg, s, slot, l.Top)
	if view.hosts, err = l.Tables.RelayHosts(ctx, idleAfter(cfg)); err != nil {
		return Stats{}, err
	}
	names := cfg.Names()
	idle, err := l.Tables.IdleSlots(ctx, func(name string) bool { return name == names.Slot || names.Sibling(name) })
	if err != nil {
		return Stats{}, err
	}
	view.showIdle(idle)
	var blocked *operator.Key
	if view.counts["blocked_keys"].N > 0 {
		if blocked, err = l.Tables.BlockedKey(ctx, DeadLettersBlock(cfg)); err != nil {
			return Stats{}, err
		}
	}
	view.Settings = known
	if live := l.Source.live; live != nil {
		view.Relay = &Live{Address: live.address}
		l.measure(ctx, view.Relay, first, failed)
		if lastID, err := l.Tables.LastID(ctx); err == nil {
			view.fall(lastID)
		}
	}
	view.Verdict = view.judge(cfg, blocked)
	return view, ctx.Err()
}

// measure takes two readings at least liveWindow apart.
func (l *Sampler) measure(ctx context.Context, view *Live, first *Reading, failed error) {
	if failed == nil {
		pause := time.NewTimer(liveWindow - time.Since(first.at))
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-ctx.Done():
			return
		}
		var second *Reading
		if second, _, failed = l.Source.Ask(ctx, l.Tables); failed == nil && second.told == nil {
			failed = errors.New(second.silent)
		}
		if failed == nil {
			view.fill(first, second, l.before != nil)
			if l.Watch {
				l.before = second
			}
			return
		}
	}
	l.before = nil
	text := OneLine(failed.Error())
	view.Error = &text
	view.hangs = errors.Is(failed, context.DeadlineExceeded) || errors.Is(failed, os.ErrDeadlineExceeded)
	var other *foreign
	if errors.As(failed, &other) {
		view.publishes = other.publishes
	}
}

// idleAfter is for how long all sessions of a relay may be idle. A relay that works looks at its tables more often.
func idleAfter(cfg *relay.Config) time.Duration { return max(time.Minute, 3*cfg.PollInterval) }

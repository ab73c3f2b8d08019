package show

import (
	"context"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/relay"
)

// Sampler takes one sample after the other.
type Sampler struct {
	// Relay is the configuration of the relays.
	Relay *relay.Config
	// Top is how many of the most frequent failures to show. With Exact, all rows are counted.
	Top   int
	Exact bool
	// Watch: more samples follow, and throughput and latency are measured since the previous one.
	Watch  bool
	Tables *operator.Tables
	Live   *LiveRelay // nil: no relay is queried
	// before is the previous reading of the relay.
	before *Reading
}

// judgedKinds is among how many kinds of failure the verdict chooses its examples.
const judgedKinds = 10

// Take returns a sample. It fails if the database does not answer, but not if the relay does not.
func (l *Sampler) Take(ctx context.Context) (Stats, error) {
	first := l.before
	var failed error
	if l.Live != nil && first == nil {
		first, failed = l.Live.Read(ctx)
	}
	s, err := l.Tables.Stats(ctx, operator.StatsOptions{
		Top: max(l.Top, judgedKinds), Header: l.Relay.MetricsHeader, Exact: l.Exact,
		Block: l.Relay.OnDeadLetter == relay.OnDeadLetterBlock,
	})
	if err != nil {
		return Stats{}, err
	}
	slot, err := l.Tables.Slot(ctx, l.Relay.Names().Slot)
	if err != nil {
		return Stats{}, err
	}
	view := newStats(l.Relay, s, slot, l.Top)
	if view.hosts, err = l.Tables.RelayHosts(ctx); err != nil {
		return Stats{}, err
	}
	var blocked *operator.Key
	if view.counts["blocked_keys"].N > 0 {
		if blocked, err = l.Tables.BlockedKey(ctx, l.Relay.OnDeadLetter == relay.OnDeadLetterBlock); err != nil {
			return Stats{}, err
		}
	}
	if l.Live != nil {
		view.Relay = &Live{Address: l.Live.address}
		l.measure(ctx, view.Relay, first, failed)
	}
	view.Verdict = view.judge(l.Relay, blocked)
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
		if second, failed = l.Live.Read(ctx); failed == nil {
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
}

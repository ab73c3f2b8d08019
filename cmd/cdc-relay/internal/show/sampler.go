package show

import (
	"context"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
)

// Sampler takes one sample after the other.
type Sampler struct {
	// Source knows the relays and their settings.
	Source *Source
	// Top is how many of the most frequent failures to show. With Exact, all rows are counted.
	Top    int
	Exact  bool
	Tables *operator.Tables
}

// judgedKinds is among how many kinds of failure the verdict chooses its examples.
const judgedKinds = 10

// Take returns a sample. It fails if the database does not answer.
func (l *Sampler) Take(ctx context.Context) (Stats, error) {
	relays, known := l.Source.Ask(ctx, l.Tables)
	cfg := known.Config
	s, err := l.Tables.Stats(ctx, operator.StatsOptions{
		Groups: operator.GroupOptions{Most: max(l.Top, judgedKinds), Header: cfg.MetricsHeader}, Exact: l.Exact,
		Known: knownOf(cfg, relays),
	})
	if err != nil {
		return Stats{}, err
	}
	slot, err := l.Tables.Slot(ctx, cfg.Names().Slot)
	if err != nil {
		return Stats{}, err
	}
	view := newStats(cfg, s, slot, l.Top)
	view.Relays, view.differences = relays, relays.Differences(l.Source.owner.Same)
	names := cfg.Names()
	idle, err := l.Tables.IdleSlots(ctx, func(name string) bool { return name == names.Slot || names.Sibling(name) })
	if err != nil {
		return Stats{}, err
	}
	view.showIdle(idle)
	var blocked *operator.Key
	if view.counts["blocked_keys"].N > 0 {
		if blocked, err = l.Tables.BlockedKey(ctx, knownOf(cfg, relays)); err != nil {
			return Stats{}, err
		}
	}
	view.Settings = known
	view.fall()
	view.Verdict = view.judge(cfg, blocked)
	return view, ctx.Err()
}

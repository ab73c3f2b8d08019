package relay

import (
	"math"

	"github.com/cdc-relay/cdc-relay/fallback"
	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/publish"
)

// newSweeper connects the sweeps to the table and the publisher.
func (r *Relay) newSweeper() *fallback.Sweeper {
	mostBody := func() int { return 0 }
	if publisher, ok := r.publisher.(publish.Limited); ok {
		mostBody = publisher.MostBody
	}
	return &fallback.Sweeper{
		Core: r.core, Table: r.store, MostBody: mostBody,
		Apply: func(out core.Out) {
			r.counts.Swept(out.Swept)
			r.apply(out)
		},
		Explain: r.store.Explain,
		Retry:   newBackoff(), Log: r.log, Trouble: newOutageLog(r.log, r.address),
		Beat: r.sweeping.beat, BeatEvery: heartbeatEvery,
		Planner:  fallback.NewPlanner(r.config.PollInterval),
		Settings: fallback.Settings{Page: r.config.BatchSize, UpTo: math.MaxInt64},
	}
}

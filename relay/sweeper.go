package relay

import (
	"context"
	"math"
	"math/rand/v2"

	"github.com/jackc/pgerrcode"

	"github.com/cdc-relay/cdc-relay/fallback"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/signal"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/store"
)

// newSweeper connects the sweeps to the table, the publisher and the settler.
func (r *Relay) newSweeper() *fallback.Sweeper {
	names, claims := r.config.Names(), newOutageLog(r.log, r.address)
	publisher, limited := r.publisher.(publish.Limited)
	return &fallback.Sweeper{
		Core: r.core, Table: r.store,
		Lock: func(
			ctx context.Context, ids []int64, large bool, fresh outbox.Fresh,
		) (fallback.Transaction, error) {
			var claim *store.LockedRows
			var err error
			if large {
				if claim, err = r.store.LockLarge(ctx, ids[0], fresh, names.Slot); err == nil && limited {
					claim.MostBody = publisher.MostBody()
				}
			} else {
				claim, err = r.store.Lock(ctx, ids, fresh, names.Slot)
			}
			return watchedRows{claim, &r.settler.commits}, err
		},
		LockRange: func(
			ctx context.Context, in outbox.Range, fresh outbox.Fresh,
		) (fallback.Transaction, *int64, error) {
			claim, err := r.store.LockPlain(ctx, in, fresh, names.Slot)
			if claim == nil {
				return nil, new(in.From), err
			}
			return watchedRows{claim, &r.settler.commits}, claim.Skipped, nil
		},
		SlotOwner: func(ctx context.Context) (fallback.Owner, error) {
			seen, err := slotNow(ctx, r.store, names)
			return fallback.Owner{PID: seen.Owner().PID, Relay: seen.Relayed(r.config.Table), Unused: unused(seen)}, err
		},
		Apply:     r.apply,
		Committed: r.observer.committed,
		Failed: func(err error) {
			claims.Report(event.ClaimFailing, "cannot read or write claimed rows: retrying", err)
		},
		Explain: func(ctx context.Context, err error) (error, bool) {
			err, gone := r.store.Explain(ctx, err)
			r.settler.failed(err)
			return err, gone
		},
		Retry: newBackoff(), Log: r.log, Trouble: newOutageLog(r.log, r.address),
		Beat: r.sweeping.beat, BeatEvery: heartbeatEvery,
		Planner: fallback.NewPlanner(r.config.PollInterval),
		Settings: fallback.Settings{
			Page: r.config.BatchSize, StaleAge: StaleTimeout, SendTimeout: r.config.SendTimeout,
			Polling: r.config.Mode == ModePoll, UpTo: math.MaxInt64,
		},
		Shuffle: rand.Shuffle,
	}
}

// signalIfStopping signals that the server takes no connections, if the error says so.
func signalIfStopping(err error, stopping signal.Signal) {
	if pgcode.Is(err, pgerrcode.CannotConnectNow) {
		stopping.Send()
	}
}

package relay

import (
	"context"
	"log/slog"
	"math"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgerrcode"

	"github.com/cdc-relay/cdc-relay/fallback"
	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/outagelog"
	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
)

// sweeper runs sweeps in one goroutine.
type sweeper struct {
	core    *core.Core
	store   *store.Store
	sweeps  *fallback.Sweeper
	log     *slog.Logger
	alive   *heartbeat
	trouble *outagelog.Log
	// failed is called with the error of a statement.
	failed func(error)
}

// run sweeps until stop is done. It finishes a started sweep under ctx. A missing table or column is an error.
func (s *sweeper) run(ctx, stop context.Context) error {
	wait := newBackoff()
	failed := fallback.None // the last sweep that failed
	for stop.Err() == nil {
		s.alive.beat()
		kind, delay := s.sweeps.Next()
		if kind == fallback.None {
			s.await(stop, delay)
			continue
		}
		began, claimed := time.Now(), s.sweeps.Claimed()
		more, err := s.sweeps.Once(ctx, kind)
		s.log.Debug("scanned the table", "sweep", kind.String(), "claimed", s.sweeps.Claimed()-claimed, "more", more,
			"took", time.Since(began).Round(time.Microsecond))
		if err == nil {
			if recovers(kind, failed) {
				s.trouble.Over(event.SweepRecovered, "scanning the table again")
			}
			wait.Reset()
			continue
		}
		failed = kind
		err, gone := s.store.Explain(ctx, err)
		if gone {
			return err
		}
		s.trouble.Report(event.SweepFailing, "cannot scan the table: retrying; unpublished rows wait", err)
		s.failed(err)
		if sleep(stop, wait.NextBackOff()) != nil {
			break
		}
	}
	return nil
}

// recovers reports whether the success of a sweep ends an outage. A slot check does not read the table: it also
// succeeds while the table is locked.
func recovers(succeeded, failed fallback.Sweep) bool {
	return succeeded != fallback.SlotCheck || failed == fallback.SlotCheck
}

// await waits until a sweep may be needed, or until the next heartbeat.
func (s *sweeper) await(stop context.Context, atMost time.Duration) {
	timer := time.NewTimer(min(atMost, heartbeatEvery))
	defer timer.Stop()
	select {
	case <-stop.Done():
	case <-s.core.Wake:
	case <-timer.C:
	}
}

// newSweeps connects the sweeps to the table, the publisher and the settler.
func (r *Relay) newSweeps() *fallback.Sweeper {
	names, claims := r.config.Names(), newOutageLog(r.log, r.address)
	return &fallback.Sweeper{
		Core: r.core, Table: r.store, Clock: r.core.Clock,
		Lock: func(
			ctx context.Context, ids []int64, large bool, fresh outbox.Fresh,
		) (fallback.Transaction, error) {
			var claim *store.Claim
			var err error
			if large {
				claim, err = r.store.LockLarge(ctx, ids[0], fresh, names.Slot)
			} else {
				claim, err = r.store.Lock(ctx, ids, fresh, names.Slot)
			}
			return watchedClaim{claim, &r.settler.commits}, err
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
		Planner: fallback.NewPlanner(r.config.PollInterval),
		Settings: fallback.Settings{
			Page: r.config.BatchSize, StaleAge: r.config.StaleTimeout, SendTimeout: r.config.SendTimeout,
			Polling: r.config.Mode == ModePoll, UpTo: math.MaxInt64,
		},
		Shuffle: rand.Shuffle,
	}
}

// signalIfStopping signals that the server takes no connections, if the error says so.
func signalIfStopping(err error, stopping chan struct{}) {
	if pgcode.Is(err, pgerrcode.CannotConnectNow) {
		signal(stopping)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

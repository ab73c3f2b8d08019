package relay

import (
	"context"
	"log/slog"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/store"
)

// retention deletes dead letters of a certain age. One goroutine, in run, does it, and only
// unless this relay is a standby.
type retention struct {
	store   *store.Store
	age     time.Duration
	batch   int
	standby func() bool
	log     *slog.Logger
	trouble *outageLog
}

const (
	// retentionEvery is how often it looks, or a tenth of the age where that is less, but not more often than retentionAtLeast.
	retentionEvery, retentionAtLeast = 10 * time.Minute, time.Second
	// retentionPause leaves the database to others between two full batches.
	retentionPause = 100 * time.Millisecond
)

func (r *retention) every() time.Duration {
	return max(min(retentionEvery, r.age/10), retentionAtLeast)
}

// run looks at once and from time to time, until ctx is done.
func (r *retention) run(ctx context.Context) error {
	for {
		if !r.standby() {
			r.round(ctx)
		}
		if sleep(ctx, r.every()) != nil {
			return nil //nolint:nilerr // it was stopped
		}
	}
}

// round deletes batch after batch until nothing is old enough.
func (r *retention) round(ctx context.Context) {
	total := int64(0)
	for {
		deleted, err := r.store.DeleteDeadLetters(ctx, r.age, r.batch)
		total += deleted
		if err != nil && ctx.Err() == nil {
			r.trouble.report(event.RetentionFailing, "cannot delete old dead letters: retrying", err)
		}
		if err == nil {
			r.trouble.over(event.RetentionRecovered, "deleting old dead letters again")
		}
		if err != nil || deleted < int64(r.batch) || sleep(ctx, retentionPause) != nil {
			break
		}
	}
	if total > 0 {
		r.log.Info("deleted old dead letters", "event", event.DeadLettersDeleted, "dead_letters", total, "older_than", r.age)
	}
}

// newRetention is nil where dead letters are kept.
func (r *Relay) newRetention() *retention {
	if r.config.DeadLetterRetention == 0 {
		return nil
	}
	return &retention{
		store: r.store, age: r.config.DeadLetterRetention, batch: r.config.BatchSize,
		standby: func() bool { return r.role() == "standby" }, log: r.log, trouble: newOutageLog(r.log),
	}
}

// checkRetention says whether the role may delete dead letters, where it is to.
func (r *Relay) checkRetention(ctx context.Context) error {
	if r.config.DeadLetterRetention == 0 {
		return nil
	}
	return r.store.CheckDeletesDeadLetters(ctx)
}

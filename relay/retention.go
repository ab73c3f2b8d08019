package relay

import (
	"context"
	"log/slog"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/store"
)

// retention deletes dead letters of a certain age, and makes and drops the partitions of the history. One goroutine, in
// run, does it, unless this relay is a standby.
type retention struct {
	store *store.Store
	// age is that of dead letters that are deleted, kept that of published messages; 0: neither.
	age, kept time.Duration
	batch     int
	standby   func() bool
	log       *slog.Logger
	trouble   *outageLog // of dead letters
	// rotating is that of the history.
	rotating *outageLog
}

const (
	// retentionEvery is how often it looks, or a tenth of the age where that is less, but not more often than retentionAtLeast.
	retentionEvery, retentionAtLeast = 10 * time.Minute, time.Second
	// retentionPause leaves the database to others between two full batches.
	retentionPause = 100 * time.Millisecond
)

func (r *retention) every() time.Duration {
	every := retentionEvery
	for _, age := range []time.Duration{r.age, r.kept} {
		if age > 0 {
			every = min(every, age/10)
		}
	}
	return max(every, retentionAtLeast)
}

// run looks at once and from time to time, until ctx is done.
func (r *retention) run(ctx context.Context) error {
	for {
		if !r.standby() {
			if r.age > 0 {
				r.round(ctx)
			}
			if r.kept > 0 {
				r.rotate(ctx)
			}
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

// rotate keeps the partitions of the history.
func (r *retention) rotate(ctx context.Context) {
	dropped, err := r.store.RotatePublished(ctx, r.kept)
	if err != nil && ctx.Err() == nil {
		r.rotating.report(event.HistoryFailing, "cannot make or drop partitions of the history: retrying", err)
	}
	if err == nil {
		r.rotating.over(event.HistoryRecovered, "making and dropping partitions of the history again")
	}
	if dropped > 0 {
		r.log.Info("dropped old partitions of the history", "event", event.HistoryDropped, "partitions", dropped, "older_than", r.kept)
	}
}

// newRetention is nil if there is nothing to delete.
func (r *Relay) newRetention() *retention {
	if r.config.DeadLetterRetention == 0 && r.config.KeepPublished == 0 {
		return nil
	}
	return &retention{
		store: r.store, age: r.config.DeadLetterRetention, kept: r.config.KeepPublished, batch: r.config.BatchSize,
		standby: func() bool { return r.role() == "standby" }, log: r.log, trouble: newOutageLog(r.log), rotating: newOutageLog(r.log),
	}
}

// checkRetention says whether the role may delete dead letters, where it is to.
func (r *Relay) checkRetention(ctx context.Context) error {
	if r.config.DeadLetterRetention == 0 {
		return nil
	}
	return r.store.CheckDeletesDeadLetters(ctx)
}

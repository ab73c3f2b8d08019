package relay

import (
	"context"
	"log/slog"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/outagelog"
	"github.com/cdc-relay/cdc-relay/store"
)

// retention deletes old dead letters, and creates and drops partitions of the history. It does nothing while this relay
// is a standby. One goroutine calls run.
type retention struct {
	store *store.Store
	// age is the age at which dead letters are deleted, kept that of the history; 0: never.
	age, kept time.Duration
	batch     int
	standby   func() bool
	log       *slog.Logger
	trouble   *outagelog.Log // of dead letters
	// rotating is the outage log of the history.
	rotating *outagelog.Log
}

const (
	// retentionEvery is the interval, or a tenth of the age if that is shorter, but at least retentionAtLeast.
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

// run works at once and then at intervals, until ctx is done.
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

// round deletes batches until no dead letter is old enough. A batch that takes too long is halved: bodies may be large.
func (r *retention) round(ctx context.Context) {
	total, batch := int64(0), r.batch
	for {
		deleted, err := r.store.DeleteDeadLetters(ctx, r.age, batch)
		total += deleted
		if tookTooLong(err) && batch > 1 && ctx.Err() == nil {
			batch /= 2
			continue
		}
		if err != nil && ctx.Err() == nil {
			r.trouble.Report(event.RetentionFailing,
				"cannot delete old dead letters: messages unaffected; retrying", err, "retry_in", r.every())
		}
		if err == nil {
			r.trouble.Over(event.RetentionRecovered, "deleting old dead letters again")
		}
		if err != nil || deleted < int64(batch) || sleep(ctx, retentionPause) != nil {
			break
		}
	}
	if total > 0 {
		r.log.Info("deleted old dead letters",
			"event", event.DeadLettersDeleted, "dead_letters", total, "older_than", r.age)
	}
}

// rotate creates and drops partitions of the history.
func (r *retention) rotate(ctx context.Context) {
	dropped, err := r.store.RotatePublished(ctx, r.kept)
	if err != nil && ctx.Err() == nil {
		r.rotating.Report(event.HistoryFailing,
			"cannot create or drop partitions of the history: messages unaffected; retrying", err,
			"retry_in", r.every())
	}
	if err == nil {
		r.rotating.Over(event.HistoryRecovered, "creating and dropping partitions of the history again")
	}
	if dropped > 0 {
		r.log.Info("dropped old partitions of the history",
			"event", event.HistoryDropped, "partitions", dropped, "older_than", r.kept)
	}
}

// newRetention returns nil if nothing is to be deleted.
func (r *Relay) newRetention() *retention {
	if r.config.DeadLetterRetention == 0 && r.config.KeepPublished == 0 {
		return nil
	}
	return &retention{
		store:    r.store,
		age:      r.config.DeadLetterRetention,
		kept:     r.config.KeepPublished,
		batch:    r.config.BatchSize,
		standby:  func() bool { return r.role() == "standby" },
		log:      r.log,
		trouble:  newOutageLog(r.log, r.address),
		rotating: newOutageLog(r.log, r.address),
	}
}

// checkRetention reports an error if the role may not delete dead letters but must.
func (r *Relay) checkRetention(ctx context.Context) error {
	if r.config.DeadLetterRetention == 0 {
		return nil
	}
	return r.store.CheckDeletesDeadLetters(ctx)
}

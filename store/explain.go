package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// State is where a row of the outbox stands, by itself: what is before it in its key is not
// looked at.
type State string

// The states.
const (
	// Fresh: the stream or a sweep brings it.
	Fresh State = "fresh"
	// Due: its time has come; the next sweep claims it.
	Due State = "due"
	// Retrying: it was rejected, and waits for its next try.
	Retrying State = "retrying"
	// Scheduled: the application has set a time, which has not come.
	Scheduled State = "scheduled"
	// Unconfirmed: it was published, and its confirm is late. If none comes it is published again at its time.
	Unconfirmed State = "unconfirmed"
	// Locked: a session has locked it, mostly a relay that publishes it.
	Locked State = "locked"
	// NewerVersion: its schema_version is for a newer relay.
	NewerVersion State = "newer_version"
)

// Waiting is a row of the outbox.
type Waiting struct {
	StoredMessage
	AvailableAt time.Time // zero: at once
	State       State
	LockedBy    int32 // the session that has locked it, by its process id; 0: none
	// Before counts the rows of its ordering key that leave first, First is the oldest of those.
	Before Count
	First  *KeyHead
	// DeadOfKey are dead letters of its key, OldestDeadOfKey the first.
	DeadOfKey       Count
	OldestDeadOfKey int64
}

// KeyHead is the oldest row of a key.
type KeyHead struct {
	ID          int64
	State       State
	LockedBy    int32
	AvailableAt time.Time
	Attempts    int
	MaxAttempts *int
	LastError   *string
}

// stateOf tells by the columns and the lock.
func stateOf(now, available time.Time, attempts, version int, marked bool, lockedBy int32) State {
	switch {
	case version > outbox.SchemaVersion:
		return NewerVersion
	case lockedBy != 0:
		return Locked
	case available.IsZero():
		return Fresh
	case !available.After(now):
		return Due
	case attempts > 0:
		return Retrying
	case marked:
		return Unconfirmed
	}
	return Scheduled
}

// lockedBySQL is the session that has locked a row r. It does not lock the row itself, which would leave a trace.
const lockedBySQL = `
       coalesce((SELECT l.pid FROM pg_catalog.pg_locks l
                 WHERE l.locktype = 'transactionid' AND l.transactionid = r.xmax AND l.mode = 'ExclusiveLock' AND l.granted LIMIT 1), 0)`

// Explain finds a message in both tables. By id it looks at few rows; a message_id has no
// index, and takes a scan.
func (o *Operator) Explain(ctx context.Context, name Name, payload bool) (waiting []Waiting, dead []DeadMessage, err error) {
	dead, err = o.DeadLetter(ctx, name, payload)
	if err != nil {
		return nil, nil, err
	}
	if len(dead) > 0 && name.id == nil { // it has moved: no need to scan
		return nil, dead, nil
	}
	find := o.look
	if name.id != nil {
		find = o.glance
	}
	err = find(ctx, func(ctx context.Context, tx querier) error {
		waiting, err = o.waitingNamed(ctx, tx, name, payload)
		return err
	})
	for i := range waiting {
		if err == nil && waiting[i].OrderingKey != nil {
			err = o.glance(ctx, func(ctx context.Context, tx querier) error { return o.keyOf(ctx, tx, &waiting[i]) })
			if isQueryCanceled(err) {
				waiting[i].Before, err = Count{Precision: Unknown}, nil
			}
		}
	}
	if err != nil {
		err = o.may(ctx, fmt.Errorf("look for message %s in %s: %w", name, o.table, err), o.reads()...)
	}
	return waiting, dead, err
}

func (o *Operator) waitingNamed(ctx context.Context, tx querier, name Name, payload bool) ([]Waiting, error) {
	where, args := name.filter().where(ofOutbox, nil)
	sql := o.fill(`SELECT {columns}, r.available_at,{locked_by} FROM {outbox} r WHERE {where} ORDER BY r.id LIMIT 100`,
		"{columns}", storedColumns(payload), "{locked_by}", lockedBySQL, "{where}", where)
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Waiting, error) {
		var available pgtype.Timestamptz
		w := Waiting{Before: Count{Precision: Exact}, DeadOfKey: Count{Precision: Exact}}
		stored, err := scanStored(row, &available, &w.LockedBy)
		w.StoredMessage, w.AvailableAt = stored, fromColumn(available)
		w.State = stateOf(w.ReadAt, w.AvailableAt, w.Attempts, w.SchemaVersion, w.PossibleDuplicate, w.LockedBy)
		return w, err
	})
}

const keyOfSQL = `
SELECT (SELECT count(*) FROM (SELECT 1 FROM {outbox} e WHERE e.ordering_key = $1 AND e.id < $2 ORDER BY e.id LIMIT $3) e),
       (SELECT count(*) FROM (SELECT 1 FROM {dead} d WHERE d.ordering_key = $1 LIMIT $3) d),
       coalesce((SELECT min(d.id) FROM (SELECT d.id FROM {dead} d WHERE d.ordering_key = $1 LIMIT $3) d), 0)`

const firstOfKeySQL = `
SELECT r.id, r.available_at, r.attempts, r.max_attempts, r.schema_version, coalesce(r.possible_duplicate, false), r.last_error,` + lockedBySQL + `
FROM {outbox} r WHERE r.ordering_key = $1 AND r.id < $2 ORDER BY r.id LIMIT 1`

// keyOf tells what is before a row in its key.
func (o *Operator) keyOf(ctx context.Context, tx querier, w *Waiting) error {
	counter := &statsReader{most: pgtype.Int8{Int64: MostCounted + 1, Valid: true}}
	var before, dead int64
	err := tx.QueryRow(ctx, o.fill(keyOfSQL), *w.OrderingKey, w.ID, counter.most).Scan(&before, &dead, &w.OldestDeadOfKey)
	if err != nil {
		return err
	}
	w.Before, w.DeadOfKey = counter.counted(before), counter.counted(dead)
	if before == 0 {
		return nil
	}
	var first KeyHead
	var version int
	var marked bool
	var available pgtype.Timestamptz
	err = tx.QueryRow(ctx, o.fill(firstOfKeySQL), *w.OrderingKey, w.ID).
		Scan(&first.ID, &available, &first.Attempts, &first.MaxAttempts, &version, &marked, &first.LastError, &first.LockedBy)
	if err == pgx.ErrNoRows { // it has left meanwhile
		w.Before = Count{Precision: Exact}
		return nil
	}
	first.AvailableAt = fromColumn(available)
	first.State = stateOf(w.ReadAt, first.AvailableAt, first.Attempts, version, marked, first.LockedBy)
	w.First = &first
	return err
}

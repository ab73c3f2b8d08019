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
	// Fresh: nobody has claimed it; the stream or a sweep brings it.
	Fresh State = "fresh"
	// Due: its time has come; the next sweep claims it.
	Due State = "due"
	// Retrying: it was refused, and waits for its next try.
	Retrying State = "retrying"
	// Scheduled: the application has set a time, which has not come.
	Scheduled State = "scheduled"
	// Claimed: it is under the lease of a relay.
	Claimed State = "claimed"
	// RetryingOrClaimed: it was refused; a relay has it now, or it waits for a moment longer.
	RetryingOrClaimed State = "retrying_or_claimed"
	// NewerVersion: its schema_version is for a newer relay.
	NewerVersion State = "newer_version"
)

// Waiting is a row of the outbox.
type Waiting struct {
	StoredMessage
	AvailableAt time.Time // zero: at once
	State       State
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
	AvailableAt time.Time
	Attempts    int
	LastError   *string
}

// stateOf tells by the columns. A lease is how long a relay may have claimed a row for.
func stateOf(now, available time.Time, attempts, version int, marked bool, lease time.Duration) State {
	switch {
	case version > outbox.SchemaVersion:
		return NewerVersion
	case available.IsZero():
		return Fresh
	case !available.After(now):
		return Due
	case !marked && attempts > 0:
		return Retrying
	case !marked: // a claim marks
		return Scheduled
	case available.Sub(now) > lease && attempts > 0:
		return Retrying
	case available.Sub(now) > lease:
		return Scheduled
	case attempts > 0:
		return RetryingOrClaimed
	}
	return Claimed
}

// Explain finds a message in both tables. By id it looks at few rows; a message_id has no
// index, and takes a scan. A lease is how long a relay may have claimed a row for.
func (o *Operator) Explain(ctx context.Context, name Name, payload bool, lease time.Duration) (waiting []Waiting, dead []DeadMessage, err error) {
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
		waiting, err = o.waitingNamed(ctx, tx, name, payload, lease)
		return err
	})
	for i := range waiting {
		if err == nil && waiting[i].OrderingKey != nil {
			err = o.glance(ctx, func(ctx context.Context, tx querier) error { return o.keyOf(ctx, tx, &waiting[i], lease) })
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

func (o *Operator) waitingNamed(ctx context.Context, tx querier, name Name, payload bool, lease time.Duration) ([]Waiting, error) {
	where, args := name.filter().where(ofOutbox, nil)
	sql := o.fill(`SELECT {columns}, r.available_at FROM {outbox} r WHERE {where} ORDER BY r.id LIMIT 100`,
		"{columns}", storedColumns(payload), "{where}", where)
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Waiting, error) {
		var available pgtype.Timestamptz
		stored, err := scanStored(row, &available)
		w := Waiting{StoredMessage: stored, AvailableAt: fromColumn(available), Before: Count{Precision: Exact}, DeadOfKey: Count{Precision: Exact}}
		w.State = stateOf(w.ReadAt, w.AvailableAt, w.Attempts, w.SchemaVersion, w.PossibleDuplicate, lease)
		return w, err
	})
}

const keyOfSQL = `
SELECT (SELECT count(*) FROM (SELECT 1 FROM {outbox} e WHERE e.ordering_key = $1 AND e.id < $2 ORDER BY e.id LIMIT $3) e),
       (SELECT count(*) FROM (SELECT 1 FROM {dead} d WHERE d.ordering_key = $1 LIMIT $3) d),
       coalesce((SELECT min(d.id) FROM (SELECT d.id FROM {dead} d WHERE d.ordering_key = $1 LIMIT $3) d), 0)`

const firstOfKeySQL = `
SELECT r.id, r.available_at, r.attempts, r.schema_version, coalesce(r.possible_duplicate, false), r.last_error
FROM {outbox} r WHERE r.ordering_key = $1 AND r.id < $2 ORDER BY r.id LIMIT 1`

// keyOf tells what is before a row in its key.
func (o *Operator) keyOf(ctx context.Context, tx querier, w *Waiting, lease time.Duration) error {
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
		Scan(&first.ID, &available, &first.Attempts, &version, &marked, &first.LastError)
	if err == pgx.ErrNoRows { // it has left meanwhile
		w.Before = Count{Precision: Exact}
		return nil
	}
	first.AvailableAt = fromColumn(available)
	first.State = stateOf(w.ReadAt, first.AvailableAt, first.Attempts, version, marked, lease)
	w.First = &first
	return err
}

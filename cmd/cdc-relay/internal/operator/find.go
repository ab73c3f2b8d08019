package operator

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/pgtime"
)

// State is the state of a row. That of a row of the outbox is its own, without the rows before it in its key.
type State string

const (
	// AtOnce: ready; the stream or a sweep reads it.
	AtOnce State = "waiting"
	// Due: its time has come; the next sweep reads it.
	Due State = "due"
	// Retrying: it was rejected, and waits for its retry.
	Retrying State = "retrying"
	// Scheduled: it was not rejected, and its time has not come.
	Scheduled State = "scheduled"
	// Locked: a session has locked it.
	Locked State = "locked"
	// Expired: its expires_at has passed.
	Expired State = "expired"
	// NewerVersion: its schema_version needs a newer relay.
	NewerVersion State = "newer_version"
	// Blocked: AtOnce or Due, but an older row of its key, or a dead letter that blocks the key, comes first. Only a
	// Filter and Stats have this state: it depends on other rows.
	Blocked State = "blocked"
	// NotDeleted: it was published, and the database does not let its row be deleted. Only the relay knows that: no
	// function of this package returns it.
	NotDeleted State = "not_deleted"
	// Dead: a dead letter.
	Dead State = "dead"
	// Published: a message of the history.
	Published State = "published"
)

// Waits reports whether it is a state of a row of the outbox.
func (s State) Waits() bool { return s != Dead && s != Published }

// States returns the states of rows of the outbox, as a person may enter them.
func States() []State {
	return []State{AtOnce, Blocked, Due, Retrying, Scheduled, Locked, Expired, NewerVersion}
}

// Message is a row of the outbox, a dead letter, or a message of the history; its State tells which.
type Message struct {
	StoredMessage
	State State
	// Reason and DeadAt are those of a dead letter, PublishedAt that of a published message. All other fields are of a
	// row of the outbox.
	Reason              string
	DeadAt, PublishedAt time.Time

	AvailableAt *time.Time // nil: at once
	LockedBy    int32      // the process id of the session that has locked it; 0: none
	// Session has locked the row or the head of its key; nil: none, or it has ended. Only Find sets it.
	Session *Session
	// Before counts the older rows of its ordering key, First is the oldest of them.
	Before Count
	First  *KeyHead
	// DeadOfKey counts the dead letters of its key, OldestDeadOfKey is the lowest id.
	DeadOfKey       Count
	OldestDeadOfKey int64
}

// KeyHead is the oldest row of a key.
type KeyHead struct {
	ID          int64
	State       State
	LockedBy    int32
	AvailableAt *time.Time // nil: at once
	Attempts    int
	MaxAttempts *int
	LastError   *string
}

// Session is a session that has locked a row.
type Session struct {
	PID int32
	// Application and Client (address and port) are nil if the role may not see them; Client also for a Unix socket.
	Application, Client *string
	// Since is the start of its transaction; nil: the role may not see it.
	Since *time.Time
}

// Statements about many rows read the locks once: withLocks begins them, and lockerSQL is the process id of the session
// that has locked a row r, 0 if none has, by its column locker (xmax).
const (
	withLocks = `
WITH locks AS MATERIALIZED (
  SELECT l.transactionid, l.pid FROM pg_catalog.pg_locks l
    WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted)`
	lockerSQL = `CASE WHEN r.locker = '0' THEN 0 ELSE coalesce((
      SELECT l.pid FROM locks l WHERE l.transactionid = r.locker LIMIT 1), 0) END`
)

// stateSQL returns the state of a row r, from its columns and its lock.
const stateSQL = `CASE WHEN r.schema_version > {version} THEN 'newer_version' WHEN {locked_by} <> 0 THEN 'locked'
       WHEN r.expires_at <= statement_timestamp() THEN 'expired' WHEN r.available_at IS NULL THEN 'waiting'
       WHEN r.available_at <= statement_timestamp() THEN 'due' WHEN r.attempts > 0 THEN 'retrying'
       ELSE 'scheduled' END`

// lockedBySQL returns the session that has locked a row r. It does not try to lock the row, which would be a write.
const lockedBySQL = `CASE WHEN r.xmax = '0' THEN 0 ELSE coalesce((
       SELECT l.pid FROM pg_catalog.pg_locks l
       WHERE l.locktype = 'transactionid' AND l.transactionid = r.xmax AND l.mode = 'ExclusiveLock' AND l.granted
         LIMIT 1), 0) END`

// stateBy returns stateSQL with an expression for the lock.
func stateBy(lock string) string { return strings.ReplaceAll(stateSQL, "{locked_by}", lock) }

// waitingColumns are the columns for scanWaiting. The statement must name the rows r.
func waitingColumns(payload bool, lock, state string) string {
	return storedColumns(payload) + `, r.available_at, ` + lock + `, ` + state
}

// scanWaiting reads waitingColumns and further columns of a query.
func scanWaiting(row pgx.CollectableRow, more ...any) (Message, error) {
	var available pgtype.Timestamptz
	w := Message{Before: Count{Precision: Exact}, DeadOfKey: Count{Precision: Exact}}
	stored, err := scanStored(row, append([]any{&available, &w.LockedBy, &w.State}, more...)...)
	w.StoredMessage, w.AvailableAt = stored, pgtime.FromColumn(available)
	return w, err
}

// mostOfOneName bounds the rows with one id.
const mostOfOneName = 100

// Find finds a message in all tables, with its payload if asked and not redacted: rows of the outbox, dead letters, and
// then published messages. An index finds an id. It finds a message_id or task except in the history and of rows that
// do not wait for a time: those need a scan. Several rows may have the same id if the sequence was restarted. It leaves
// out the history if the role may not read it and the message is elsewhere.
func (t *Tables) Find(ctx context.Context, name Name, payload bool) ([]Message, error) {
	named := func(of newest) ([]Message, error) {
		return of.read(ctx, t, name.filter(), mostOfOneName, mostOfNamed(), payload)
	}
	dead, err := named(deadLetters())
	if err != nil {
		return nil, t.reading(ctx, "read dead letters of", err)
	}
	found := dead
	if len(dead) == 0 || name.id != nil { // else it is dead: no need to scan
		waiting, err := t.findWaiting(ctx, name, payload)
		if err != nil {
			return nil, t.reading(ctx, "look for message "+name.String()+" in", err)
		}
		found = append(waiting, dead...)
	}
	var published []Message
	kept, err := t.HasHistory(ctx)
	if err == nil && kept {
		published, err = named(history())
	}
	if err != nil && len(found) == 0 {
		return nil, t.historyError(ctx, "read messages of", err)
	}
	return append(found, published...), nil
}

func (t *Tables) findWaiting(ctx context.Context, name Name, payload bool) (waiting []Message, err error) {
	read := func(find func(context.Context, func(context.Context, querier) error) error, which string) error {
		return showing(mostOfNamed(), func(most string) error {
			return find(ctx, func(ctx context.Context, tx querier) error {
				waiting, err = t.waitingNamed(ctx, tx, name, which, payload, most)
				return err
			})
		})
	}
	if name.id != nil {
		err = read(t.glance, "")
	} else if err = read(t.glance, timedRows); err == nil && len(waiting) == 0 {
		err = read(t.look, "r.available_at IS NULL AND ")
	}
	for i := range waiting {
		if err == nil && waiting[i].OrderingKey != nil {
			err = t.glance(ctx, func(ctx context.Context, tx querier) error { return t.keyOf(ctx, tx, &waiting[i]) })
			if pgcode.Is(err, pgerrcode.QueryCanceled) {
				waiting[i].Before, err = Count{Precision: Unknown}, nil
			}
		}
		if err == nil {
			err = t.glance(ctx,
				func(ctx context.Context, tx querier) error { return t.sessionOf(ctx, tx, &waiting[i]) })
		}
	}
	return waiting, err
}

// timedRows is the predicate of the index on message_id.
const timedRows = "r.available_at IS NOT NULL AND "

const waitingNamedSQL = `
WITH found AS MATERIALIZED (
  SELECT ` + rowColumns + `, r.available_at, {locked_by} AS locked_by
  FROM {outbox} r WHERE {where} ORDER BY r.id LIMIT {limit})
SELECT {columns} FROM found r ORDER BY r.id`

func (t *Tables) waitingNamed(
	ctx context.Context, tx querier, name Name, which string, payload bool, most string,
) ([]Message, error) {
	where, args := name.filter().where(ofOutbox, nil)
	sql := t.fill(waitingNamedSQL,
		"{columns}", waitingColumns(payload, "r.locked_by", stateBy("r.locked_by")),
		"{locked_by}", lockedBySQL,
		"{where}", which+where,
		"{limit}", fmt.Sprint(mostOfOneName))
	rows, err := tx.Query(ctx, strings.ReplaceAll(sql, "{most}", most), args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Message, error) { return scanWaiting(row) })
}

const sessionSQL = `
SELECT a.application_name, pg_catalog.host(a.client_addr) || coalesce(':' || nullif(a.client_port, -1)::text, ''),
       a.xact_start
FROM pg_catalog.pg_stat_activity a WHERE a.pid = $1`

// sessionOf reads which session has locked a row, or the row that it waits for.
func (t *Tables) sessionOf(ctx context.Context, tx querier, w *Message) error {
	pid := w.LockedBy
	if pid == 0 && w.First != nil {
		pid = w.First.LockedBy
	}
	if pid == 0 {
		return nil
	}
	s := Session{PID: pid}
	var since pgtype.Timestamptz
	err := tx.QueryRow(ctx, sessionSQL, pid).Scan(&s.Application, &s.Client, &since)
	if err == pgx.ErrNoRows {
		return nil
	}
	s.Since, w.Session = pgtime.FromColumn(since), &s
	return err
}

const keyOfSQL = `
SELECT (SELECT count(*) FROM (
          SELECT 1 FROM {outbox} e WHERE e.ordering_key = $1 AND e.id < $2 ORDER BY e.id LIMIT $3) e),
       (SELECT count(*) FROM (SELECT 1 FROM {dead} d WHERE d.ordering_key = $1 LIMIT $3) d),
       coalesce((SELECT pg_catalog.min(d.id) FROM (SELECT d.id FROM {dead} d WHERE d.ordering_key = $1 LIMIT $3) d), 0)`

const firstOfKeySQL = `
SELECT r.id, r.available_at, r.attempts, r.max_attempts, {last_error}, {locked_by}, {state}
FROM {outbox} r WHERE r.ordering_key = $1 AND r.id < $2 ORDER BY r.id LIMIT 1`

// keyOf reads what comes before a row in its key.
func (t *Tables) keyOf(ctx context.Context, tx querier, w *Message) error {
	const stop = MostCounted + 1
	var before, dead int64
	err := tx.QueryRow(ctx, t.fill(keyOfSQL), *w.OrderingKey, w.ID, stop).Scan(&before, &dead, &w.OldestDeadOfKey)
	if err != nil {
		return err
	}
	w.Before, w.DeadOfKey = counted(before, stop), counted(dead, stop)
	if before == 0 {
		return nil
	}
	var first KeyHead
	var available pgtype.Timestamptz
	sql := t.fill(firstOfKeySQL,
		"{last_error}", shownText("r.last_error"),
		"{locked_by}", lockedBySQL,
		"{state}", stateBy(lockedBySQL))
	err = tx.QueryRow(ctx, sql, *w.OrderingKey, w.ID).Scan(&first.ID, &available,
		&first.Attempts, &first.MaxAttempts, &first.LastError, &first.LockedBy, &first.State)
	if err == pgx.ErrNoRows { // it has left meanwhile
		w.Before = Count{Precision: Exact}
		return nil
	}
	first.AvailableAt = pgtime.FromColumn(available)
	w.First = &first
	return err
}

package operator

import (
	"context"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/pgtime"
)

// Session is a session of the server, such as one that has locked a row.
type Session struct {
	PID int32 `json:"pid"`
	// Application and Client (address and port) are nil if the role may not see them; Client also for a Unix socket.
	Application *string `json:"application"`
	Client      *string `json:"client"`
	// Since is the start of its transaction, or of its connection if it owns a slot; nil: the role may not see it.
	Since *time.Time `json:"since"`
}

// mostOfOneName bounds the rows with one id.
const mostOfOneName = 100

// Find finds a message in all tables, with its payload if asked and not redacted: rows of the outbox, dead letters, and
// then published messages. An index finds an id. It finds a message_id or task except in the history and of rows that
// do not wait for a time: those need a scan. Several rows may have the same id if the sequence was restarted. It leaves
// out the history if the role may not read it and the message is elsewhere.
func (t *Tables) Find(ctx context.Context, name Name, k Known, payload bool) ([]Message, error) {
	dead, err := t.named(ctx, t.look, deadLetters(), name, "", payload)
	if err != nil {
		return nil, t.reading(ctx, deadLetters(), "read dead letters of", err)
	}
	found := dead
	if len(dead) == 0 || name.id != nil { // else it is dead: no need to scan
		rows, err := t.findWaiting(ctx, name, k, payload)
		if err != nil {
			return nil, t.reading(ctx, waiting(k), "look for message "+name.String()+" in", err)
		}
		found = append(rows, dead...)
	}
	var published []Message
	kept, err := t.HasHistory(ctx)
	if err == nil && kept {
		published, err = t.named(ctx, t.look, history(), name, "", payload)
	}
	if err != nil && len(found) == 0 {
		return nil, t.reading(ctx, history(), "read messages of", err)
	}
	return append(found, published...), nil
}

// named reads the rows of a name. Which is a further condition, or "".
func (t *Tables) named(
	ctx context.Context, in within, from source, name Name, which string, payload bool,
) ([]Message, error) {
	where, args := name.filter().where(from, nil)
	return t.messages(ctx, in, from.found(which+where, "r.id", mostOfOneName, payload), mostOfNamed(), args...)
}

// timedRows is the predicate of the index on message_id.
const timedRows = "r.available_at IS NOT NULL AND "

func (t *Tables) findWaiting(ctx context.Context, name Name, k Known, payload bool) (rows []Message, err error) {
	if name.id != nil {
		rows, err = t.named(ctx, t.glance, waiting(k), name, "", payload)
	} else if rows, err = t.named(ctx, t.glance, waiting(k), name, timedRows, payload); err == nil && len(rows) == 0 {
		rows, err = t.named(ctx, t.look, waiting(k), name, "r.available_at IS NULL AND ", payload)
	}
	for i := range rows {
		if err == nil && rows[i].OrderingKey != nil {
			err = t.keyOf(ctx, &rows[i], k)
		}
		if err == nil {
			err = t.glance(ctx, func(ctx context.Context, tx querier) error { return t.sessionOf(ctx, tx, &rows[i]) })
		}
	}
	return rows, err
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

// firstOfKeySQL is the condition for the rows before another one of its key.
const firstOfKeySQL = `r.ordering_key BETWEEN $1 AND $1 AND r.id < $2`

// keyOf reads what comes before a row in its key. The numbers stay unknown if counting takes too long.
func (t *Tables) keyOf(ctx context.Context, w *Message, k Known) error {
	const stop = MostCounted + 1
	var before, dead int64
	err := t.glance(ctx, func(ctx context.Context, tx querier) error {
		return tx.QueryRow(ctx, t.fill(keyOfSQL), *w.OrderingKey, w.ID, stop).Scan(&before, &dead, &w.OldestDeadOfKey)
	})
	if pgcode.Is(err, pgerrcode.QueryCanceled) {
		w.Before = Count{Precision: Unknown}
		return nil
	}
	w.Before, w.DeadOfKey = counted(before, stop), counted(dead, stop)
	if err != nil || before == 0 {
		return err
	}
	sql := waiting(k).found(firstOfKeySQL, byKey("", "").order(), 1, false)
	rows, err := t.messages(ctx, t.glance, sql, mostListed(), *w.OrderingKey, w.ID)
	if len(rows) > 0 {
		w.First = &rows[0]
	} else { // it has left meanwhile
		w.Before = Count{Precision: Exact}
	}
	return err
}

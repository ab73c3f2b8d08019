package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/pgtime"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// LockedRows is an open transaction that locks the rows of a claim. End it with Commit or Abandon.
type LockedRows struct {
	store *Store
	conn  *pgxpool.Conn
	// Messages are the locked rows, by id.
	Messages []*outbox.Message
	// places are those of the locked rows.
	places map[outbox.Ref]place
	// Position is the WAL position after the lock: every locked row committed before it.
	Position uint64
	// Owner is the server process that owned the slot after the lock, or streamed the table from another one; 0: none.
	Owner uint32
	// MostBody is the largest body that the broker accepts; 0: unknown. Read reads no larger one.
	MostBody int
	// Skipped is the first row that LockPlain has left to Lock; nil: none.
	Skipped *int64
	// began is the start of the transaction on the database's clock, asked a time before it on this process's clock.
	began, asked time.Time
}

// place is where a row is stored: the table or partition, and the ctid in it.
type place struct {
	table uint32 // pg_class.oid
	ctid  pgtype.TID
}

// IdleTimeout is when the server ends the transaction of a frozen relay. A claim ends well before.
const IdleTimeout = 10 * time.Second

// now() is the start of the transaction.
const positionSQL = `
SELECT ` + insertPosition + `, ` + slot.OwnerSQL + `, now(),
       nullif(pg_catalog.current_setting('cdc_relay.skipped', true), '')::bigint`

// Lock starts a claim: it locks the rows with these ids that are still ready and not locked. A row that the server
// cannot send makes the statement fail, so the claim is halved until that row is alone.
func (s *Store) Lock(ctx context.Context, ids []int64, fresh outbox.Fresh, slotName string) (*LockedRows, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	claim, err := s.lock(ctx, s.sql.lock, len(ids), slotName, fresh.UpTo, fresh.Age, ids)
	why := unreadable(err)
	switch {
	case why == "":
		return claim, err
	case len(ids) > 1:
		return s.Lock(ctx, ids[:len(ids)/2], fresh, slotName)
	}
	if claim, err = s.LockLarge(ctx, ids[0], fresh, slotName); err != nil {
		return nil, err
	}
	for _, m := range claim.Messages {
		m.Unreadable = why
	}
	return claim, nil
}

// LockLarge starts a claim of one row without its body, which Read reads.
func (s *Store) LockLarge(ctx context.Context, id int64, fresh outbox.Fresh, slotName string) (*LockedRows, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return s.lock(ctx, s.sql.lockBare, 1, slotName, fresh.UpTo, fresh.Age, []int64{id})
}

// LockPlain starts a claim of the first rows of a range, in one statement that finds and locks them. It returns nil if
// the server cannot send one of the rows.
func (s *Store) LockPlain(
	ctx context.Context, in outbox.Range, fresh outbox.Fresh, slotName string,
) (*LockedRows, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	claim, err := s.lock(ctx, s.sql.lockPlain, in.Rows, slotName,
		fresh.UpTo, fresh.Age, in.From, in.UpTo, in.Rows, in.Held, in.Size)
	if unreadable(err) != "" {
		return nil, nil
	}
	return claim, err
}

// lock starts a claim with a statement that locks rows.
func (s *Store) lock(ctx context.Context, sql string, rows int, slotName string, args ...any) (*LockedRows, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("claim rows of %s: %w", s.table, err)
	}
	claim := &LockedRows{store: s, conn: conn, places: make(map[outbox.Ref]place, rows), asked: time.Now()}
	batch := &pgx.Batch{}
	batch.Queue(`BEGIN`)
	batch.Queue(s.sql.lockTable)
	batch.Queue(sql, args...).Query(claim.scan)
	batch.Queue(positionSQL, s.ownerArgs(slotName)...).QueryRow(func(row pgx.Row) error {
		return row.Scan((*pglogrepl.LSN)(&claim.Position), &claim.Owner, &claim.began, &claim.Skipped)
	})
	if err := send(ctx, conn, batch); err != nil {
		claim.Abandon()
		return nil, fmt.Errorf("claim rows of %s: %w", s.table, err)
	}
	for _, m := range claim.Messages {
		claim.setDeadline(m)
	}
	return claim, nil
}

// setDeadline converts expires_at, which is on the database's clock.
func (c *LockedRows) setDeadline(m *outbox.Message) {
	if m.ExpiresAt != nil {
		deadline := c.asked.Add(m.ExpiresAt.Sub(c.began))
		m.Deadline = &deadline
	}
}

// mostClaimed bounds the bytes of a claim, if the sizes of its rows were estimated far too small. Further rows are left
// as if another session had locked them. Usually the core's limit, a quarter of this, applies.
const mostClaimed = 32 << 20

func (c *LockedRows) scan(rows pgx.Rows) error {
	defer rows.Close()
	bytes := 0
	var at place
	var over *string
	locked, superseded := false, false
	scanner := NewScanner(c.store.headers, &over, &at.table, &at.ctid, &locked, &superseded)
	for rows.Next() {
		m, err := scanner.Scan(rows)
		if err != nil {
			return err
		}
		limit(m, over)
		over = nil
		if bytes += m.Size(); bytes > mostClaimed && len(c.Messages) > 0 {
			continue
		}
		m.PossibleDuplicate, m.Superseded = m.PossibleDuplicate || locked, superseded
		c.Messages = append(c.Messages, m)
		c.places[m.Ref()] = at
	}
	return rows.Err()
}

// Locked returns the messages, the WAL position after the lock, and the process that owned the slot then.
func (c *LockedRows) Locked() (messages []*outbox.Message, position uint64, owner uint32) {
	return c.Messages, c.Position, c.Owner
}

// Abandon ends a claim and writes nothing.
func (c *LockedRows) Abandon() {
	c.rollback()
	c.conn.Release()
}

// rollback has the timeout of any statement, so that a slow server keeps its connection.
func (c *LockedRows) rollback() {
	ctx, cancel := c.store.bounded(context.Background())
	defer cancel()
	_, _ = c.conn.Exec(ctx, `ROLLBACK`) // the pool closes a connection that is still in a transaction
}

// ErrUnchanged is returned if a trigger or a rule kept a row from being changed as decided.
var ErrUnchanged = errors.New("the database has left the row unchanged")

// Commit writes the decisions and ends the claim. It sets AvailableAt of postponed rows to their new time. On an error,
// settle the rows again, as Tried: the server may have committed.
func (c *LockedRows) Commit(ctx context.Context, rows []outbox.Settlement, postpone time.Duration) error {
	ctx, cancel := c.store.boundedFor(ctx, c.store.moved(rows))
	defer cancel()
	defer c.conn.Release() // the pool closes a connection that is still in a transaction
	batch := &pgx.Batch{}
	for _, write := range c.store.writes() {
		part := write.part(rows)
		if len(part) == 0 {
			continue
		}
		if write.action == outbox.Delete {
			c.queueDelete(batch, write, part)
			continue
		}
		if write.action == outbox.DeadLetter {
			write.sql = c.store.extras.fill(ctx, c.conn, c.store.table, write.sql)
		}
		sql, args := write.statement(part)
		batch.Queue(sql, args...).QueryRow(func(row pgx.Row) error {
			var changed []int64
			if err := row.Scan(nil, &changed, nil); err != nil {
				return err
			}
			if len(changed) < len(part) {
				return ErrUnchanged
			}
			return nil
		})
	}
	c.queuePostpone(batch, ofAction(rows, outbox.Postpone), postpone)
	batch.Queue(`COMMIT`)
	if err := send(ctx, c.conn, batch); err != nil {
		c.rollback()
		if pgcode.Class(err) == pgcode.SyntaxOrAccess {
			c.store.extras.forget() // a column may have been dropped since it was read
		}
		return fmt.Errorf("delete or update claimed rows of %s: %w", c.store.table, err)
	}
	return nil
}

func (c *LockedRows) queueDelete(batch *pgx.Batch, write settling, part []outbox.Settlement) {
	sql := c.store.sql.deleteLocked
	if write.dropped {
		sql = c.store.sql.dropLocked
	}
	tables := make(map[uint32][]pgtype.TID)
	for _, s := range part {
		at := c.places[s.Message.Ref()]
		tables[at.table] = append(tables[at.table], at.ctid)
	}
	for table, ctids := range tables {
		batch.Queue(sql, ctids, table).Exec(func(tag pgconn.CommandTag) error {
			if tag.RowsAffected() < int64(len(ctids)) {
				return ErrUnchanged
			}
			return nil
		})
	}
}

func (c *LockedRows) queuePostpone(batch *pgx.Batch, late []outbox.Settlement, postpone time.Duration) {
	if len(late) == 0 {
		return
	}
	ids, byID := make([]int64, len(late)), make(map[int64]*outbox.Message, len(late))
	for i, s := range late {
		ids[i], byID[s.Message.ID] = s.Message.ID, s.Message
	}
	batch.Queue(c.store.sql.postpone, ids, postpone).Query(func(rows pgx.Rows) error {
		var id int64
		var until pgtype.Timestamptz
		changed, err := pgx.ForEachRow(rows, []any{&id, &until}, func() error {
			byID[id].AvailableAt = pgtime.FromColumn(until)
			return nil
		})
		if err == nil && changed.RowsAffected() < int64(len(late)) {
			return ErrUnchanged
		}
		return err
	})
}

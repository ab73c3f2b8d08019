package store

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// unreadable returns the server's error if it failed because of a value of a row: a limit such as 1 GB for a text, or a
// character that UTF-8 lacks. Otherwise it returns "".
func unreadable(err error) string {
	var answer *pgconn.PgError
	class := pgcode.Class(err)
	if (class == pgcode.DataException || class == pgcode.TooComplex) && errors.As(err, &answer) {
		return answer.Error()
	}
	return ""
}

// slowest is how many bytes a second move at least, between the server and this process, or from table to table. A
// dead connection must end some time.
const slowest = 128 << 10

// boundedFor is bounded for a statement that moves many bytes.
func (s *Store) boundedFor(ctx context.Context, bytes int) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.statementTimeout+time.Duration(bytes/slowest)*time.Second)
}

// Read reads the body of a row that was locked alone, as large. It takes as long as the body needs.
func (c *LockedRows) Read(ctx context.Context) error {
	err := c.readLarge(ctx)
	if c.Messages[0].Unreadable = unreadable(err); c.Messages[0].Unreadable != "" {
		_, err = c.conn.Exec(ctx, `ROLLBACK TO reading`)
	}
	if err != nil {
		return fmt.Errorf("read row %d of %s: %w", c.Messages[0].ID, c.store.table, err)
	}
	return nil
}

func (c *LockedRows) readLarge(ctx context.Context) error {
	m := c.Messages[0]
	at := c.places[m.Ref()]
	size, err := c.bodySize(ctx, at)
	if err != nil {
		return err
	}
	if size > mostUnpacked { // the last large row must not count twice
		runtime.GC()
	}
	ctx, cancel := c.store.boundedFor(ctx, size)
	defer cancel()
	var over *string
	read, err := NewScanner(c.store.headers, &over).Scan(c.conn.QueryRow(ctx, c.store.sql.read, at.table, at.ctid))
	switch {
	case err != nil:
		return err
	case c.MostBody > 0 && size > c.MostBody:
		read.Payload, read.Unread, read.MostBody = nil, size, c.MostBody
	case read.Payload != nil:
		if read.Payload, err = c.body(ctx, at); err != nil {
			return err
		}
	}
	limit(read, over)
	read.PossibleDuplicate, read.Superseded, read.Deadline = m.PossibleDuplicate, m.Superseded, m.Deadline
	*m = *read
	return nil
}

func (c *LockedRows) body(ctx context.Context, at place) (body []byte, err error) {
	rows, _ := c.conn.Query(ctx, c.store.sql.pieces, at.table, at.ctid) // its error is also that of the rows
	var size int
	var piece pgtype.DriverBytes
	_, err = pgx.ForEachRow(rows, []any{&size, &piece}, func() error {
		if body == nil {
			body = make([]byte, 0, size)
		}
		body = append(body, piece...)
		return nil
	})
	if body == nil {
		body = []byte{}
	}
	return body, err
}

func (c *LockedRows) bodySize(ctx context.Context, at place) (size int, err error) {
	ctx, cancel := c.store.bounded(ctx)
	defer cancel()
	batch := &pgx.Batch{}
	batch.Queue(`SAVEPOINT reading`)
	batch.Queue(c.store.sql.bodySize, at.table, at.ctid).QueryRow(func(row pgx.Row) error { return row.Scan(&size) })
	return size, send(ctx, c.conn, batch)
}

// Alive is an error if the server has ended the transaction.
func (c *LockedRows) Alive(ctx context.Context) error {
	ctx, cancel := c.store.bounded(ctx)
	defer cancel()
	if err := c.conn.Ping(ctx); err != nil {
		return fmt.Errorf("keep the claimed rows of %s: %w", c.store.table, err)
	}
	return nil
}

// moved is how many bytes of bodies the server copies to another table when it writes these rows.
func (s *Store) moved(rows []outbox.Settlement) (bytes int) {
	for _, one := range rows {
		if one.Decision.Action == outbox.DeadLetter || s.keep > 0 && one.Decision.Action == outbox.Delete {
			bytes += one.Message.Size()
		}
	}
	return bytes
}

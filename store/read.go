package store

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// ReadRows reads the rows with these ids that may leave now. It leaves out those that a session has locked, and those
// that do not fit. The body of a row that is larger than all of them may be is left to ReadBody.
func (s *Store) ReadRows(
	ctx context.Context, ids []int64, upTo int64,
) (rows []*outbox.Message, position uint64, err error) {
	rows, position, err = s.read(ctx, s.sql.readRows, upTo, mostRead, mostRead/len(ids), ids)
	why := unreadable(err)
	switch {
	case why == "":
		return rows, position, err
	case len(ids) > 1: // until the row that the server cannot send is alone
		return s.ReadRows(ctx, ids[:len(ids)/2], upTo)
	}
	return s.readBare(ctx, why, s.sql.readRowsBare, upTo, mostRead, 0, ids)
}

// ReadRange reads the first rows of a range without a key and without a time. Bodies are as in ReadRows.
func (s *Store) ReadRange(ctx context.Context, in outbox.Range) (p outbox.Page, err error) {
	held := append([]int64{}, in.Held...)
	rows, position, err := s.read(ctx, s.sql.readRange, in.UpTo, in.Bytes, in.Bytes/in.Rows, in.From, held, in.Rows)
	if why := unreadable(err); why != "" {
		if in.Rows > 1 {
			in.Rows /= 2
			return s.ReadRange(ctx, in)
		}
		rows, position, err = s.readBare(ctx, why, s.sql.readRangeBare, in.UpTo, in.Bytes, 0, in.From, held, in.Rows)
	}
	bytes := 0
	p.Position, p.UpTo = position, in.UpTo
	for _, m := range rows {
		if bytes += m.Size() + m.Unread; m.Traced {
			p.Traced = append(p.Traced, m.ID)
		} else {
			p.Messages = append(p.Messages, m)
		}
	}
	if len(rows) >= in.Rows || bytes > in.Bytes/4 {
		p.UpTo = rows[len(rows)-1].ID
	}
	return p, err
}

// ReadBody reads a row whose body was not read with it, unless that has more than most bytes; 0: no limit. It takes as
// long as the body needs. Nil: the row may not leave any more.
func (s *Store) ReadBody(ctx context.Context, m *outbox.Message, most int) (read *outbox.Message, err error) {
	ctx, cancel := s.boundedFor(ctx, m.Unread)
	defer cancel()
	args := []any{int64(math.MaxInt64), 1, 0, []int64{m.ID}} // not the body
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		rows, _, err := s.readIn(ctx, tx, s.sql.readRows, args...)
		if read = theRow(rows, m); read == nil {
			return err
		}
		if most > 0 && read.Unread > most {
			read.MostBody = most
			return nil
		}
		if read.Unread > mostRead { // the last large row must not count twice
			runtime.GC()
		}
		read.Unread = 0
		read.Payload, err = s.body(ctx, tx, m.ID)
		return err
	})
	if why := unreadable(err); why != "" {
		rows, _, err := s.readBare(ctx, why, s.sql.readRowsBare, args...)
		return theRow(rows, m), err
	}
	return read, err
}

// theRow returns the row of a message among those that were read by its id; nil: another one has this id now.
func theRow(rows []*outbox.Message, m *outbox.Message) *outbox.Message {
	if len(rows) == 0 || rows[0].MessageID != m.MessageID {
		return nil
	}
	return rows[0]
}

// body reads the body of a locked row, in pieces.
func (s *Store) body(ctx context.Context, tx pgx.Tx, id int64) (body []byte, err error) {
	rows, _ := tx.Query(ctx, s.sql.pieces, id) // its error is also that of the rows
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

// readBare reads a row without the columns that the server cannot send.
func (s *Store) readBare(
	ctx context.Context, why, sql string, args ...any,
) (rows []*outbox.Message, position uint64, err error) {
	rows, position, err = s.read(ctx, sql, args...)
	for _, m := range rows {
		m.Unreadable = why
	}
	return rows, position, err
}

func (s *Store) read(
	ctx context.Context, sql string, args ...any,
) (read []*outbox.Message, position uint64, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return s.readIn(ctx, s.pool, sql, args...)
}

// readIn runs a statement that reads messages with bodies of up to the second argument. All of them committed before
// the position.
func (s *Store) readIn(
	ctx context.Context, db schema.Querier, sql string, args ...any,
) (read []*outbox.Message, position uint64, err error) {
	asked := time.Now()
	rows, _ := db.Query(ctx, sql, args...) // its error is also that of the rows
	var over *string
	var superseded bool
	var now time.Time
	var size int64
	var traced bool
	scanner := NewScanner(s.headers, &over, &superseded, &now, (*pglogrepl.LSN)(&position), &size, &traced)
	defer rows.Close()
	for rows.Next() {
		m, err := scanner.Scan(rows)
		if err != nil {
			return nil, 0, fmt.Errorf("read rows of %s: %w", s.table, err)
		}
		limit(m, over)
		over, m.Superseded, m.Traced = nil, superseded, traced
		if most, ok := args[1].(int); ok && size > int64(most) {
			m.Payload, m.Unread = nil, int(size)
		}
		if m.ExpiresAt != nil { // on the database's clock
			deadline := asked.Add(m.ExpiresAt.Sub(now))
			m.Deadline = &deadline
		}
		read = append(read, m)
	}
	if err := rows.Err(); err != nil {
		return nil, 0, fmt.Errorf("read rows of %s: %w", s.table, err)
	}
	return read, position, nil
}

package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// statementTimeout limits each statement on the server.
const statementTimeout = 5 * time.Second

// session reads from the database and cannot change it: each question is a READ ONLY transaction that is rolled back,
// in a session that is read-only by default.
type session struct {
	conn *pgx.Conn
	// tables are those of the outbox.
	tables []outbox.Table
	// pooled: a pooler rejected the startup parameters.
	pooled bool
}

// openSession connects. A pooler rejects startup parameters that it does not know; then the session keeps its default,
// because a SET would outlive this client in the pool.
func openSession(
	ctx context.Context, connect func(context.Context, map[string]string) (*pgx.Conn, error),
) (*session, error) {
	conn, err := connect(ctx, map[string]string{"default_transaction_read_only": "on"})
	if err == nil {
		return &session{conn: conn}, nil
	}
	if pgcode.Of(err) != pgerrcode.ProtocolViolation {
		return nil, err
	}
	if plain, second := connect(ctx, nil); second == nil {
		return &session{conn: plain, pooled: true}, nil
	}
	return nil, err
}

func (s *session) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	s.conn.Close(ctx) //nolint:errcheck // the server notices the end of the connection in any case
}

// limits of one transaction, and a search path with only the catalog
const limits = `SELECT pg_catalog.set_config('statement_timeout', $1, true),
  pg_catalog.set_config('lock_timeout', '1s', true),
	pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true), pg_catalog.set_config('jit', 'off', true)`

// answer is the answer to one question.
type answer[T any] struct {
	value T
	err   error
}

// read asks one question.
func read[T any](ctx context.Context, s *session, question func(pgx.Tx) (T, error)) (a answer[T]) {
	ctx, cancel := context.WithTimeout(ctx, 2*statementTimeout)
	defer cancel()
	tx, err := s.conn.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
	if err == nil {
		_, err = tx.Exec(ctx, limits, fmt.Sprint(statementTimeout.Milliseconds()))
	}
	if err == nil {
		a.value, err = question(tx)
	}
	if tx != nil {
		_ = tx.Rollback(ctx) // if it fails, pgx closes the connection
	}
	a.err = s.hinted(ctx, err)
	return a
}

// ask runs a query that returns one JSON value, or no row. JSON also works if another server version has other catalog
// columns. Its keys are the names of the fields, in any case; a field without a value stays empty.
func ask[T any](ctx context.Context, s *session, query string, args ...any) answer[T] {
	return read(ctx, s, func(tx pgx.Tx) (value T, err error) {
		var text []byte
		switch err = tx.QueryRow(ctx, query, args...).Scan(&text); {
		case errors.Is(err, pgx.ErrNoRows):
			return value, nil
		case err == nil && text != nil:
			err = json.Unmarshal(text, &value)
		}
		return value, err
	})
}

// hinted adds a hint to an error of a question, whose transaction has ended.
func (s *session) hinted(ctx context.Context, err error) error {
	switch pgcode.Of(err) {
	case pgerrcode.QueryCanceled:
		return &advice{
			fmt.Errorf("it took longer than %s: %w", statementTimeout, err),
			lines(remark("-- run check again when the server is less busy; what delays it:"),
				sql("SELECT pid, usename, state, now() - query_start AS since, left(query, 60) "+
					"FROM pg_stat_activity WHERE state <> 'idle' ORDER BY query_start")),
		}
	case pgerrcode.LockNotAvailable:
		return migrations.Blocked(ctx, s.conn, err, s.tables...)
	case pgerrcode.InsufficientPrivilege:
		if grant := problem.Grant(err, s.conn.Config().User); grant != "" {
			return &advice{err, sql("%s", grant)}
		}
		return &advice{err, remark("-- see the findings about grants")}
	}
	return err
}

// advice is an error with a fix.
type advice struct {
	error
	fix steps
}

func (a *advice) Unwrap() error { return a.error }

package soak

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/time/rate"

	"github.com/cdc-relay/cdc-relay/test/program"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

const (
	// writers is how many connections write.
	writers = 4
	// writerName is the writers' application_name. It identifies their sessions.
	writerName = "cdc-relay-soak writer"
	// burst is how far a writer may exceed its rate, in messages: the largest transaction.
	burst = 500
	// transactionTimeout limits all statements of a transaction before its end, and then COMMIT or ROLLBACK separately.
	// It ends a transaction if the server is frozen or cut off, or waits for a lock or a standby.
	transactionTimeout = 10 * time.Second
)

// startWriters starts to insert so many messages a second, across all faults of the database, until ctx ends. stop ends
// it before, and waits until every transaction has ended, at most half a minute.
func startWriters(ctx context.Context, database string, seed uint64, perSecond float64, record *history.Recorder) (
	stop func(), err error,
) {
	config, err := pgx.ParseConfig(database)
	if err != nil {
		return nil, fmt.Errorf("read the address of the database: %w", err)
	}
	config.ConnectTimeout = 5 * time.Second
	config.RuntimeParams["application_name"] = writerName
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	for i := range writers {
		w := &writer{planner: newPlanner(seed, i), record: record}
		w.pace = rate.NewLimiter(rate.Limit(perSecond/writers), burst)
		w.pace.AllowN(time.Now(), burst) // no burst at the start
		done.Go(func() {
			persist(ctx, func() error { return w.session(ctx, config) })
		})
	}
	return func() {
		cancel()
		done.Wait()
	}, nil
}

// persist calls session again until ctx ends. It waits before that, the longer the more often a session ended soon.
func persist(ctx context.Context, session func() error) {
	const least, most = 50 * time.Millisecond, time.Second
	wait := least
	for ctx.Err() == nil {
		began := time.Now()
		_ = session() // faults end it
		if time.Since(began) > most {
			wait = least
		}
		program.Pause(ctx, wait)
		wait = min(2*wait, most)
	}
}

type writer struct {
	*planner
	record *history.Recorder
	pace   *rate.Limiter
}

// session writes on one connection until it fails, or ctx ends.
func (w *writer) session(ctx context.Context, config *pgx.ConnConfig) error {
	conn, err := pgx.ConnectConfig(ctx, config.Copy())
	if err != nil {
		return err
	}
	defer func() {
		closeConn(ctx, conn)
		<-conn.PgConn().CleanupDone() // pgx cancels its query in the background
	}()
	for {
		t := w.next()
		if err := w.pace.WaitN(ctx, min(len(t.rows), burst)); err != nil {
			return err // stopped
		}
		outcome, err := w.execute(context.WithoutCancel(ctx), conn, t) // completed even if the writers are to stop
		w.record.Ended(t.id, outcome)
		if outcome == history.Unknown {
			// The transaction may commit later than the writer's next ones, for example on a server that waits for a
			// standby. The server may be down, so the writer cannot wait until the old session has ended.
			w.abandon(t)
		}
		if err != nil {
			return err
		}
	}
}

// execute runs a transaction to its end. After an error the connection cannot be used again.
//
// COMMIT is sent only after everything else has succeeded. So a failure before it leaves nothing behind: the server
// rolls back when it notices that the connection is gone.
func (w *writer) execute(ctx context.Context, conn *pgx.Conn, t *transaction) (history.Outcome, error) {
	err := w.statements(ctx, conn, t)
	told := history.Transaction{ID: t.id, Writer: w.writer, Messages: make([]history.Message, len(t.rows))}
	for i := range t.rows {
		told.Messages[i] = t.rows[i].Message
	}
	w.record.Ending(told)
	if err != nil {
		return history.RolledBack, err
	}
	ctx, cancel := context.WithTimeout(ctx, transactionTimeout)
	defer cancel()
	tag, err := conn.Exec(ctx, t.end)
	switch {
	case err == nil && tag.String() == "COMMIT":
		return history.Committed, nil
	case err == nil, t.end == "ROLLBACK", rejected(err): // a statement had failed, or the commit itself was rejected
		return history.RolledBack, err
	default:
		return history.Unknown, err
	}
}

// statements runs everything except the end.
func (w *writer) statements(ctx context.Context, conn *pgx.Conn, t *transaction) error {
	ctx, cancel := context.WithTimeout(ctx, transactionTimeout)
	defer cancel()
	if _, err := conn.Exec(ctx, "BEGIN"); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "INSERT INTO soak_transaction VALUES ($1)", t.id); err != nil {
		return err
	}
	for _, s := range t.steps {
		var err error
		switch rows := t.rows[s.from:s.to]; {
		case s.copied:
			err = copyRows(ctx, conn, rows)
		case len(rows) > 0:
			err = w.insert(ctx, conn, rows)
		default:
			_, err = conn.Exec(ctx, s.sql)
		}
		switch {
		case s.fails && err == nil:
			return fmt.Errorf("the server accepted a statement that it must reject: %s", s.sql)
		case err != nil && !(s.fails && rejected(err)):
			return err
		}
	}
	return nil
}

// rejected reports whether the server rejected a statement and the session continues. FATAL ends the session and says
// nothing about a COMMIT.
func rejected(err error) bool {
	var answer *pgconn.PgError
	return errors.As(err, &answer) && answer.SeverityUnlocalized == "ERROR"
}

// columns are the columns that the writers fill, and types are those of their values. A scheduled row is due after a
// number of milliseconds, by the database's clock; COPY cannot do that, so it is the last column.
func columns() (names, types []string) {
	names = []string{
		"message_id", "exchange", "routing_key", "ordering_key", "payload", "payload_bytes", "headers", "properties",
		"available_at",
	}
	types = []string{
		"$%d::uuid", "$%d::text", "$%d::text", "$%d::text", "$%d::json", "$%d::bytea", "$%d::jsonb", "$%d::jsonb",
		"clock_timestamp() + $%d::float8 * interval '1 ms'",
	}
	return names, types
}

func (w *writer) insert(ctx context.Context, conn *pgx.Conn, rows []row) error {
	names, types := columns()
	var values []string
	var args []any
	now := w.record.Now() // before the server reads its clock, so that a scheduled row is not due earlier than this
	for i := range rows {
		var places []string
		for j := range types {
			places = append(places, fmt.Sprintf(types[j], len(args)+j+1))
		}
		values = append(values, "("+strings.Join(places, ", ")+")")
		args = append(args, rows[i].fields()...)
		if rows[i].Kind == history.Scheduled {
			rows[i].NotBefore = now + rows[i].delay
		}
	}
	_, err := conn.Exec(ctx, "INSERT INTO "+outboxTable+" ("+strings.Join(names, ", ")+") VALUES "+
		strings.Join(values, ", "), args...)
	return err
}

func copyRows(ctx context.Context, conn *pgx.Conn, rows []row) error {
	names, _ := columns()
	last := len(names) - 1
	_, err := conn.CopyFrom(ctx, pgx.Identifier{outboxTable}, names[:last],
		pgx.CopyFromSlice(len(rows), func(i int) ([]any, error) {
			return rows[i].fields()[:last], nil
		}))
	return err
}

// fields are a row's values in the order of columns.
func (r *row) fields() []any {
	optional := func(text string) any {
		if text == "" {
			return nil
		}
		return text
	}
	fields := []any{
		[16]byte(r.ID), r.exchange, r.routingKey, optional(r.Key), r.body, nil, optional(r.headers),
		optional(r.properties), nil,
	}
	if r.Kind == history.Binary {
		fields[4], fields[5] = nil, r.body
	}
	if r.delay > 0 {
		fields[8] = float64(r.delay.Milliseconds())
	}
	return fields
}

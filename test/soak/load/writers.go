package load

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/time/rate"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

// WriterOptions say what to write, and where.
type WriterOptions struct {
	// DatabaseURL is the address of the database itself, bypassing the proxies.
	DatabaseURL string
	Table       outbox.Table
	// Run names the run, in soak_transaction and in the bodies.
	Run string
	// Seed determines what is written, but not when, nor the outcome.
	Seed uint64
	// Rate is how many messages a second all writers insert together; above 0.
	Rate float64
	// Writers is how many connections write at a time, at least 1.
	Writers  int
	Topology Topology
	// Transactions is how many transactions each writer ends as its plan says, whatever happens meanwhile. 0: they
	// write until they are stopped, and continue with the next transaction after a failure.
	Transactions int
}

const (
	// writerName is the writers' application_name. It identifies their sessions.
	writerName = "cdc-relay-soak writer"
	// connectTimeout limits one attempt to connect to one host.
	connectTimeout = 5 * time.Second
	// closeTimeout limits closing a connection to a server that may be down.
	closeTimeout = 2 * time.Second
	// reconnectLeast and reconnectMost are the shortest and longest wait before the next attempt to connect; it doubles
	// each time.
	reconnectLeast, reconnectMost = 50 * time.Millisecond, time.Second
	// burst is how far a writer may exceed its rate, in messages: the largest transaction.
	burst = 500
)

// Writers insert messages until they are stopped, across all faults of the database.
type Writers struct {
	opts   WriterOptions
	record *history.Recorder
	stop   context.CancelFunc
	done   sync.WaitGroup // for the writers, and for pgx, which cleans up abandoned connections
}

// StartWriters starts them. They end with ctx, or through Stop.
func StartWriters(ctx context.Context, opts WriterOptions, record *history.Recorder) (*Writers, error) {
	config, err := writerConfig(opts.DatabaseURL)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	w := &Writers{opts: opts, record: record, stop: stop}
	for i := range opts.Writers {
		w.done.Go(func() { w.write(ctx, config, i) })
	}
	return w, nil
}

// Written waits until the writers have ended all their transactions, or are stopped.
func (w *Writers) Written() { w.done.Wait() }

// Stop stops the writers. It waits until every transaction has ended, at most half a minute.
func (w *Writers) Stop() {
	w.stop()
	w.done.Wait()
}

func writerConfig(databaseURL string) (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return nil, fmt.Errorf("read the address of the database: %w", err)
	}
	config.ConnectTimeout = connectTimeout
	config.RuntimeParams["application_name"] = writerName
	return config, nil
}

func (w *Writers) write(ctx context.Context, config *pgx.ConnConfig, writer int) {
	plan := newPlanner(w.opts.Seed, writer, w.opts.Writers, w.opts.Topology)
	run := &executor{
		run: w.opts.Run, writer: writer, table: w.opts.Table, record: w.record, persist: w.opts.Transactions > 0,
	}
	pace := rate.NewLimiter(rate.Limit(w.opts.Rate/float64(w.opts.Writers)), burst)
	pace.AllowN(time.Now(), burst) // no burst at the start
	for ctx.Err() == nil && !w.wrote(plan) {
		conn := w.connect(ctx, config)
		if conn == nil {
			return
		}
		w.session(ctx, conn, plan, run, pace)
		w.close(conn)
	}
}

// wrote reports whether a writer has ended all its transactions.
func (w *Writers) wrote(plan *planner) bool {
	return w.opts.Transactions > 0 && plan.again == nil && plan.drawn >= int64(w.opts.Transactions)
}

// session writes on one connection until it fails.
func (w *Writers) session(ctx context.Context, conn *pgx.Conn, plan *planner, run *executor, pace *rate.Limiter) {
	for !w.wrote(plan) {
		t := plan.next()
		if pace.WaitN(ctx, min(len(t.rows), burst)) != nil {
			return // stopped
		}
		outcome, err := run.execute(ctx, conn, t)
		switch {
		case run.persist && !t.ended:
			plan.again = t
		case outcome == history.Unknown:
			// The transaction may commit later than the writer's next ones, for example on a server that waits for a
			// standby. The server may be down, so the writer cannot wait until the old session has ended.
			plan.abandon(t)
		}
		if err != nil {
			return
		}
	}
}

// connect retries until it succeeds. It returns nil once ctx has ended.
func (w *Writers) connect(ctx context.Context, config *pgx.ConnConfig) *pgx.Conn {
	wait := reconnectLeast
	for {
		conn, err := pgx.ConnectConfig(ctx, config.Copy())
		if err == nil {
			return conn
		}
		if ctx.Err() != nil {
			return nil
		}
		if !Pause(ctx, wait) {
			return nil
		}
		wait = min(2*wait, reconnectMost)
	}
}

// close closes a connection. pgx cancels its query in the background, with deadlines of its own.
func (w *Writers) close(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = conn.Close(ctx) // the connection is closed in any case
	w.done.Go(func() { <-conn.PgConn().CleanupDone() })
}

// Pause waits. It returns false once ctx has ended.
func Pause(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

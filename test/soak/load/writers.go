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

// WriterOptions say what is written, and where.
type WriterOptions struct {
	// DatabaseURL goes to the database itself, past any proxy. With several hosts and target_session_attrs=read-write
	// the writers follow a failover.
	DatabaseURL string
	Table       outbox.Table
	// Run names the run, in soak_transaction and in the bodies.
	Run string
	// Seed decides what is written. When, and what becomes of it, it does not.
	Seed uint64
	// Rate is how many messages a second all writers together insert, more than 0.
	Rate float64
	// Writers is how many connections write at a time, at least 1.
	Writers int
	// KeysPerWriter is how many ordering keys each writer has at a time, at least 1.
	KeysPerWriter int
	Topology      Topology
}

const (
	// writerName is the writers' application_name, by which the end of their sessions is awaited.
	writerName = "cdc-relay-soak writer"
	// connectTimeout bounds one attempt to connect to one host.
	connectTimeout = 5 * time.Second
	// closeTimeout bounds the goodbye to a server that may be gone.
	closeTimeout = 2 * time.Second
	// reconnectMost is the longest wait before the next attempt to connect, after the shortest was doubled so far.
	reconnectLeast, reconnectMost = 50 * time.Millisecond, time.Second
	// burst is how many messages a writer may be ahead of its rate: the largest transaction.
	burst = 500
)

// Writers insert messages until they are stopped, whatever becomes of the database.
type Writers struct {
	Trouble Trouble

	opts   WriterOptions
	record WriterRecorder
	stop   context.CancelFunc
	done   sync.WaitGroup // the writers, and what pgx still does for connections that were given up
}

// StartWriters starts them. They end with ctx, or by Stop.
func StartWriters(ctx context.Context, opts WriterOptions, record WriterRecorder) (*Writers, error) {
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

// Stop ends the writers. It waits until every transaction has come to its end, half a minute at most.
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
	// One more than there are writers: Backlog is the last.
	plan := newPlanner(w.opts.Seed, writer, w.opts.Writers+1, w.opts.KeysPerWriter, w.opts.Topology)
	run := &executor{run: w.opts.Run, writer: writer, table: w.opts.Table, record: w.record}
	pace := rate.NewLimiter(rate.Limit(w.opts.Rate/float64(w.opts.Writers)), burst)
	pace.AllowN(time.Now(), burst) // no burst at the start
	for ctx.Err() == nil {
		conn := w.connect(ctx, config)
		if conn == nil {
			return
		}
		w.session(ctx, conn, plan, run, pace)
		w.close(conn)
	}
}

// session writes on one connection until it fails.
func (w *Writers) session(ctx context.Context, conn *pgx.Conn, plan *planner, run *executor, pace *rate.Limiter) {
	for {
		t := plan.next()
		if pace.WaitN(ctx, min(len(t.rows), burst)) != nil {
			return // stopped
		}
		outcome, err := run.execute(ctx, conn, t)
		if outcome == history.Unknown {
			// It may yet commit, while later transactions of this writer already do: on a server that waits for a
			// standby, say. Waiting for the old session to end would take a server that can be asked.
			plan.abandon(t)
		}
		if err != nil {
			w.Trouble.add(err)
			return
		}
	}
}

// connect tries until it succeeds; nil once ctx has ended.
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
		w.Trouble.add(err)
		if !pause(ctx, wait) {
			return nil
		}
		wait = min(2*wait, reconnectMost)
	}
}

// close lets go of a connection; pgx cancels what runs on it, in the background and with deadlines of its own.
func (w *Writers) close(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = conn.Close(ctx) // whatever it says, the connection is gone
	w.done.Go(func() { <-conn.PgConn().CleanupDone() })
}

// pause waits; false once ctx has ended.
func pause(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// backlogTransaction is how many rows one transaction of a backlog has.
const backlogTransaction = 2000

// Backlog commits at least so many rows as quickly as COPY goes, in recorded transactions, a fifth of the rows with
// ordering keys. It is for before the writers start.
func Backlog(ctx context.Context, opts WriterOptions, rows int, record WriterRecorder) error {
	config, err := writerConfig(opts.DatabaseURL)
	if err != nil {
		return err
	}
	const keys = 1000
	w := &Writers{opts: opts}
	defer w.done.Wait()
	plan := newPlanner(opts.Seed, opts.Writers, opts.Writers+1, keys, opts.Topology)
	run := &executor{run: opts.Run, writer: opts.Writers, table: opts.Table, record: record}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("write the backlog: %w", err)
	}
	defer w.close(conn)
	for written := 0; written < rows; written += backlogTransaction {
		if _, err := run.execute(ctx, conn, plan.bulk(backlogTransaction)); err != nil {
			return fmt.Errorf("write the backlog: %w", err)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("write the backlog: %w", context.Cause(ctx))
		}
	}
	return nil
}

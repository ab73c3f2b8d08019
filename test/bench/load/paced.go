package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Writers insert single messages at a given rate, each in its own transaction, as applications do.
type Writers struct {
	conns []*pgx.Conn
	table outbox.Table
	spec  Spec
}

// OpenWriters connects count writers. The caller closes them.
func OpenWriters(ctx context.Context, databaseURL string, count int, table outbox.Table, spec Spec) (*Writers, error) {
	w := &Writers{table: table, spec: spec}
	for range count {
		conn, err := pgx.Connect(ctx, databaseURL)
		if err != nil {
			w.Close()
			return nil, fmt.Errorf("connect a writer: %w", err)
		}
		w.conns = append(w.conns, conn)
	}
	return w, nil
}

// PIDs are the writers' server processes.
func (w *Writers) PIDs() []int {
	var pids []int
	for _, conn := range w.conns {
		pids = append(pids, int(conn.PgConn().PID()))
	}
	return pids
}

// Close closes the connections.
func (w *Writers) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	for _, conn := range w.conns {
		_ = conn.Close(ctx) // everything was committed
	}
}

// Write inserts messages from from to to-1 at a rate per second. The n-th is due n/rate seconds after the start; a late
// one does not delay later ones while a writer is free. committed is called after each commit, from several goroutines.
func (w *Writers) Write(
	ctx context.Context, from, to int, rate float64, committed func(n int, at time.Time) error,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var next atomic.Int64
	next.Store(int64(from))
	began := time.Now()
	errs := make([]error, len(w.conns))
	var group sync.WaitGroup
	for i, conn := range w.conns {
		group.Go(func() {
			filler := w.spec.Filler()
			for n := int(next.Add(1)) - 1; n < to; n = int(next.Add(1)) - 1 {
				due := began.Add(time.Duration(float64(n-from) / rate * float64(time.Second)))
				if !waitUntil(ctx, due) {
					return
				}
				if errs[i] = w.insert(ctx, conn, n, filler, committed); errs[i] != nil {
					cancel()
					return
				}
			}
		})
	}
	group.Wait()
	return errors.Join(append(errs, context.Cause(ctx))...)
}

func (w *Writers) insert(
	ctx context.Context, conn *pgx.Conn, n int, filler string, committed func(int, time.Time) error,
) error {
	var key *string
	if text := w.spec.Key(n); text != "" {
		key = &text
	}
	statement := "INSERT INTO " + w.table.SQL() + " (routing_key, ordering_key, payload) VALUES ($1, $2, $3)"
	if _, err := conn.Exec(ctx, statement, w.spec.Queue(n), key, string(w.spec.Body(n, filler))); err != nil {
		return fmt.Errorf("write message %d: %w", n, err)
	}
	return committed(n, time.Now())
}

func waitUntil(ctx context.Context, due time.Time) bool {
	left := time.Until(due)
	if left <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

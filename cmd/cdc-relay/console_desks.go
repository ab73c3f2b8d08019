package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/pgdial"
)

// desks are connections to the database, each with one user at a time. Each kind of work has its own, so that slow work
// of one kind does not delay another. A nil desk is not connected yet.
type desks struct{ pages, updates, changes, samples chan *desk }

func newDesks() desks {
	some := func(n int) chan *desk {
		free := make(chan *desk, n)
		for range n {
			free <- nil
		}
		return free
	}
	return desks{pages: some(4), updates: some(2), changes: some(2), samples: some(1)}
}

// close waits until all work has ended.
func (d desks) close(ctx context.Context) {
	for _, all := range []chan *desk{d.pages, d.updates, d.changes, d.samples} {
		for range cap(all) {
			if one := <-all; one != nil {
				closeConn(ctx, one.conn)
			}
		}
	}
}

const (
	// deskWait is how long work waits for a connection.
	deskWait = 10 * time.Second
	// pageTimeout bounds the queries of a page. A search for a message_id reads whole tables.
	pageTimeout, searchTimeout = 15 * time.Second, time.Minute
	// writeTimeout is how long a client may take to read an answer.
	writeTimeout = 30 * time.Second
)

var errBusy = errors.New("all connections of the console are busy: try again")

// at calls do with one of the connections.
func (s *console) at(ctx context.Context, all chan *desk, do func(context.Context, *desk) error) error {
	var d *desk
	waited := time.NewTimer(deskWait)
	defer waited.Stop()
	select {
	case d = <-all:
	case <-waited.C:
		return errBusy
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { all <- d }()
	if d == nil || d.conn.IsClosed() {
		d = nil
		fresh, err := s.process.openDesk(ctx, s.cfg, "console")
		if err != nil {
			return err
		}
		d = fresh
	}
	return do(ctx, d)
}

// timely bounds the time of every answer. Answers that take longer set a deadline of their own.
func timely(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(searchTimeout + writeTimeout))
		next.ServeHTTP(w, r)
	})
}

// livelyListener makes connections end whose client no longer answers: the updates of its page would be sent for a
// quarter of an hour.
type livelyListener struct{ net.Listener }

func (l livelyListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		pgdial.EndIfSilent(conn, writeTimeout)
	}
	return conn, err
}

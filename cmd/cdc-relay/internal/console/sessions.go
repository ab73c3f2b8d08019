package console

import (
	"context"
	"errors"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
)

// sessions are connections to the database, each with one user at a time. Each kind of work has its own, so that slow
// work of one kind does not delay another. A nil session is not connected yet.
type sessions struct{ pages, updates, changes, samples chan *operator.Tables }

func newSessions() sessions {
	some := func(n int) chan *operator.Tables {
		free := make(chan *operator.Tables, n)
		for range n {
			free <- nil
		}
		return free
	}
	return sessions{pages: some(4), updates: some(2), changes: some(2), samples: some(1)}
}

// close waits until all work has ended.
func (s sessions) close(ctx context.Context) {
	for _, all := range []chan *operator.Tables{s.pages, s.updates, s.changes, s.samples} {
		for range cap(all) {
			if one := <-all; one != nil {
				one.Close(ctx)
			}
		}
	}
}

// sessionWait is how long work waits for a connection.
const sessionWait = 10 * time.Second

var errBusy = errors.New("all connections of the console are busy: try again")

// with calls do with one of these connections. It connects if that is necessary.
func (c *Console) with(
	ctx context.Context, all chan *operator.Tables, do func(context.Context, *operator.Tables) error,
) error {
	var session *operator.Tables
	waited := time.NewTimer(sessionWait)
	defer waited.Stop()
	select {
	case session = <-all:
	case <-waited.C:
		return errBusy
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { all <- session }()
	if session == nil || session.Closed() {
		session = nil
		fresh, err := c.cfg.Open(ctx)
		if err != nil {
			return err
		}
		session = fresh
	}
	return do(ctx, session)
}

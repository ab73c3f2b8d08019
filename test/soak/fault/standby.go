package fault

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// pair is a private Postgres and its standby. They swap roles.
type pair struct {
	mu               sync.Mutex
	primary, standby *services.Postgres
	alone            bool // the former primary has ended and is not a standby yet
}

func (p *pair) servers() (primary, standby *services.Postgres) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.primary, p.standby
}

func (p *pair) changePlaces() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.primary, p.standby, p.alone = p.standby, p.primary, true
}

func (p *pair) isAlone() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.alone
}

func (p *pair) joined() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.alone = false
}

// standbyName is the application_name of a standby started by package services.
const standbyName = "standby"

// provideStandby starts a standby, makes every commit wait for it, and returns an address with both servers.
func (w *World) provideStandby(ctx context.Context) error {
	standby, err := w.Postgres.StartStandby(ctx)
	if err != nil {
		return err
	}
	w.pair = &pair{primary: w.Postgres, standby: standby}
	both, err := url.Parse(w.Database)
	if err != nil {
		return err
	}
	both.Host += "," + standby.Addr()
	query := both.Query()
	query.Set("target_session_attrs", "read-write")
	both.RawQuery = query.Encode()
	w.Database = both.String()
	return w.replicateSynchronously(ctx)
}

// replicateSynchronously makes commits wait for the standby, and returns when the standby streams.
func (w *World) replicateSynchronously(ctx context.Context) error {
	if err := w.configure(ctx, "synchronous_standby_names", standbyName); err != nil {
		return err
	}
	return w.awaitSynchronous(ctx)
}

func (w *World) awaitSynchronous(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, hangTimeout,
		fmt.Errorf("the standby does not stream within %s", hangTimeout))
	defer cancel()
	return poll(ctx, func() (bool, error) {
		var streams bool
		err := w.Query(ctx, &streams, `SELECT EXISTS (SELECT FROM pg_stat_replication
			WHERE application_name = $1 AND state = 'streaming' AND sync_state = 'sync')`, standbyName)
		return streams, err
	})
}

// synchronousStandbys is the value of synchronous_standby_names without a fault.
func (w *World) synchronousStandbys() string {
	if w.pair == nil || w.pair.isAlone() {
		return ""
	}
	return standbyName
}

// primary returns the private server that accepts writes.
func (w *World) primary() *services.Postgres {
	if w.pair == nil {
		return w.Postgres
	}
	primary, _ := w.pair.servers()
	return primary
}

func (w *World) closePostgres(ctx context.Context) error {
	if w.pair == nil {
		return w.Postgres.Close(ctx)
	}
	primary, standby := w.pair.servers()
	return errors.Join(standby.Close(ctx), primary.Close(ctx))
}

// needStandby makes the former primary a standby of the new one, unless it is one, and waits until commits wait for it.
func (w *World) needStandby(ctx context.Context) (*services.Postgres, error) {
	primary, standby := w.pair.servers()
	if !w.pair.isAlone() {
		return standby, w.awaitSynchronous(ctx)
	}
	if err := standby.Follow(ctx, primary); err != nil {
		return nil, err
	}
	w.pair.joined()
	return standby, w.replicateSynchronously(ctx)
}

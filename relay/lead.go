package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/decode"
	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/outagelog"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/store"
)

// leader makes this relay the only one that publishes the rows of a table, or of a shard, while it has the lock. It is
// the same for relays that stream, poll or drain. One goroutine calls run.
type leader struct {
	address pgdial.Address
	names   provision.Names
	core    *core.Core
	store   *store.Store
	log     *slog.Logger
	trouble *outagelog.Log
	alive   *heartbeat
	// streamer streams while this relay leads; nil: it polls or drains.
	streamer *streamer
	// phase is that of the publisher, or stuck. connection is the publisher's own phase, and the number of its
	// answers.
	phase      func() publish.Phase
	connection func() (phase publish.Phase, answers int)
	// latestRetry is the longest wait before a retry.
	latestRetry time.Duration
	// waitsFor is the session that has the lock while this relay is a standby, else nil.
	waitsFor atomic.Pointer[slot.Process]
	// clock is the last comparison of the server's clock with that of this process.
	clock *atomic.Pointer[core.ServerClock]
	// announced is the last role in the log.
	announced event.Name
}

const (
	// askLock is how often a standby looks at the lock.
	askLock = 250 * time.Millisecond
	// pingEvery is how often the leader proves that it has the lock.
	pingEvery = time.Second
)

func (r *Relay) newLeader() *leader {
	return &leader{
		address: r.address, names: r.config.Names(), core: r.core, store: r.store, log: r.log,
		trouble: newOutageLog(r.log, r.address), alive: newHeartbeat(),
		phase: r.phaseForLead, connection: r.unanswered.connection, latestRetry: r.config.latestRetry(),
		clock: &r.clock,
	}
}

const lockDown = "cannot hold the lock of the table: nothing is published; retrying"

// run waits for the lock and leads, until ctx is done. It returns an error only if no retry can help.
func (l *leader) run(ctx context.Context) error {
	for wait := newBackoff(); ; {
		l.alive.beat()
		led, err := l.once(ctx)
		if ctx.Err() != nil {
			return nil
		}
		unchecked := l.announced == "" || l.streamer != nil && !l.streamer.opened
		if unchecked && fatal(err) || errors.As(err, new(*decode.MissingColumnError)) ||
			errors.Is(err, provision.ErrOtherSplit) {
			return err
		}
		if !errors.Is(err, errHandedOver) && !errors.Is(err, errReplaced) {
			l.trouble.Report(event.PostgresDown, lockDown, err)
		}
		if led {
			wait.Reset()
		}
		if sleep(ctx, wait.NextBackOff()) != nil {
			return nil
		}
	}
}

// once waits for the lock, and then leads until its session ends. Led: it has had the lock.
func (l *leader) once(ctx context.Context) (led bool, err error) {
	session, err := connectLock(ctx, l.address, l.names.Table, l.names.Shard)
	if err != nil {
		return false, err
	}
	defer session.close(ctx)
	if err := l.await(ctx, session); err != nil {
		return false, err
	}
	return true, l.lead(ctx, session)
}

// await takes the lock once it is free. A relay that cannot publish leaves it to one that can.
func (l *leader) await(ctx context.Context, session lockSession) error {
	defer l.waitsFor.Store(nil)
	for told := false; ; {
		l.alive.beat()
		ready := l.phase() == publish.Ready
		if ready != told {
			name := "cdc-relay standby"
			if ready {
				name = readyName(l.names.Slot)
			}
			if err := session.setName(ctx, name); err != nil {
				return err
			}
			told = ready
		}
		holder, err := session.locker(ctx)
		switch {
		case err != nil:
			return err
		case holder.PID != 0 && !holder.OfRelay():
			l.waitsFor.Store(nil)
			l.trouble.Report(event.PostgresDown, lockDown, problem.New(
				fmt.Sprintf("SELECT pg_catalog.pg_terminate_backend(%d);  -- as an administrator", holder.PID),
				"%s has locked %s, and is no relay", holder, session.versions))
		case holder.PID != 0:
			l.waitsFor.Store(&holder)
			l.trouble.Over(event.StreamUp, "Postgres answers again: this relay is a standby")
			l.announce(event.StandbyStarted, "standby: another relay is the leader", "leader", holder.String())
		case ready || !session.standbyIsReady(ctx, l.names.Slot):
			if taken, err := session.take(ctx, false); taken || err != nil {
				return err
			}
		}
		if err := sleep(ctx, askLock); err != nil {
			return err
		}
	}
}

// lead publishes until the session ends, or until another relay can do so better.
func (l *leader) lead(ctx context.Context, session lockSession) error {
	taken := time.Now()
	if err := session.setName(ctx, "cdc-relay leader"); err != nil {
		return err
	}
	if err := l.checkSplit(ctx); err != nil {
		return err
	}
	if err := l.beginTerm(ctx, session, taken); err != nil {
		return err
	}
	defer l.core.EndTerm()
	streaming, end := context.WithCancel(ctx)
	failed := make(chan error, 1)
	var stream sync.WaitGroup
	defer stream.Wait()
	defer end()
	if l.streamer != nil {
		l.streamer.alive.beat()
		stream.Go(func() { failed <- l.streamer.run(streaming) })
	}
	_, answers := l.connection()
	outage := brokerOutage{took: taken, answers: answers}
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for renewed := taken; ; {
		began := time.Now()
		if began.Sub(renewed) > renewAfter {
			if held, err := session.take(ctx, true); err != nil || !held {
				return errors.Join(err, errReplaced)
			}
			renewed = began
		}
		if err := l.ping(ctx, session); err != nil {
			return err
		}
		l.core.Owned(began)
		phase, answers := l.connection()
		helpless := l.phase() == stuck || outage.handsOver(phase, answers, began)
		if helpless && session.standbyIsReady(ctx, l.names.Slot) {
			l.log.Warn("publisher unavailable: leaving the lead to a standby that can publish",
				"event", event.SlotHandedOver, "slot", l.names.Slot)
			return errHandedOver
		}
		select {
		case <-ctx.Done():
			stream.Wait()
			if older, quiet := l.core.Quiet(); quiet {
				session.leaveWord(ctx, older)
			}
			return nil
		case err := <-failed:
			return err
		case <-l.core.Doubted:
		case <-tick.C:
		}
	}
}

// errReplaced ends a term, because another relay may have led meanwhile.
var errReplaced = errors.New("another session took the lock of the table")

// checkSplit fails if relays stream the same rows from other slots.
func (l *leader) checkSplit(ctx context.Context) error {
	return l.store.Conn(ctx, func(conn *pgx.Conn) error { return provision.CheckSplit(ctx, conn.PgConn(), l.names) })
}

// beginTerm begins the term of a relay that has taken the lock. What is in the table now could leave before, unless the
// former leader has ended well.
func (l *leader) beginTerm(ctx context.Context, session lockSession, taken time.Time) error {
	server := l.store.Restarts()
	var well bool
	var older int64
	err := l.store.Conn(ctx, func(conn *pgx.Conn) (err error) {
		well, older, err = session.takeWord(ctx, conn.PgConn())
		return err
	})
	if err != nil {
		return err
	}
	if well {
		taken = time.Time{}
	} else if older, err = l.greatestID(ctx, taken); err != nil {
		return err
	}
	if err := l.ping(ctx, session); err != nil {
		return err
	}
	if l.store.Restarts() != server {
		return errors.New("the server was restarted or replaced while the term began")
	}
	l.core.BeginTerm(core.Lead{Older: older, Server: server, Free: taken})
	l.trouble.Over(event.StreamUp, "Postgres answers again: this relay is the leader")
	l.announce(event.LeaderStarted, "took the lock of the table: this relay is the leader, "+
		"and publishes older rows from the table")
	l.hasten(ctx)
	return nil
}

// greatestID returns the greatest id that a former leader may have published, which died or has not noticed yet that it
// has lost the lock. Until LateAfter, that leader takes rows.
func (l *leader) greatestID(ctx context.Context, taken time.Time) (int64, error) {
	if err := sleep(ctx, time.Until(taken.Add(core.LateAfter))); err != nil {
		return 0, err
	}
	last, ok, err := l.store.LastID(ctx)
	if !ok {
		last = math.MaxInt64 // without a sequence, new rows cannot be told from older ones
	}
	return last, err
}

func (l *leader) ping(ctx context.Context, session lockSession) error {
	l.alive.beat()
	began := time.Now()
	at, err := session.ping(ctx)
	if err != nil {
		return err
	}
	now := core.ServerClock{Ours: began, Server: at}
	if before := l.clock.Swap(&now); before != nil && now.Behind(*before) {
		l.hasten(ctx)
	}
	return nil
}

// hasten makes retries due that got a time beyond all limits while the server's clock was ahead.
func (l *leader) hasten(ctx context.Context) {
	n, err := l.store.HastenRetries(ctx, l.latestRetry)
	if err != nil && ctx.Err() == nil {
		l.log.Warn("retries of a clock that was ahead stay late: looking again in the next term",
			"event", event.RetriesHastened, "error", pgdial.Text(err))
	}
	if n > 0 {
		l.log.Warn("made late retries due: the clock of Postgres was ahead", "event", event.RetriesHastened, "rows", n)
	}
}

// announce logs each change of the role once.
func (l *leader) announce(name event.Name, what string, args ...any) {
	if name != l.announced {
		l.announced = name
		l.log.Info(what, append([]any{"event", name, "table", l.names.Table.String()}, args...)...)
	}
}

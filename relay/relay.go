// Package relay is one running relay: it takes rows from the stream and the sweep,
// publishes them, and settles them.
//
// The flow, in the order of the files: streamer.go and sweeper.go bring messages,
// core.go (with registry.go and gate.go) decides what may leave now, the publisher
// brings it to the broker, settler.go writes what became of it.
package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/relay/core"
	"github.com/cdc-relay/cdc-relay/store"
)

// Relay brings rows of one outbox table to one broker. Make it with New, run it once
// with Run or Drain.
type Relay struct {
	config    Config
	publisher publish.Publisher
	log       *slog.Logger
	counts    *metrics
	store     *store.Store
	core      *core.Core
	hooks     *hooks
	settler   *settler
	sweeper   *sweeper
	streamer  atomic.Pointer[streamer] // nil if the relay only polls, or drains
	starting  *outageLog

	phase   atomic.Int32 // one of the phases below; Run writes, Health reads
	state   atomic.Pointer[publish.State]
	blocked blockedTime
}

const (
	phaseStarting int32 = iota
	phaseRunning
	phaseStopping
	phaseStopped
)

// New makes a relay. It does not connect; Run it, or else Close it. The publisher must be made for at least
// config.MaxInFlight messages; the relay runs it and stops it. Metrics are
// registered with the registry.
func New(config Config, publisher publish.Publisher, log *slog.Logger, registry prometheus.Registerer) (*Relay, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	block := config.OnDeadLetter == OnDeadLetterBlock
	db, err := store.Open(config.DatabaseURL, config.Table, block, config.Shard)
	if err != nil {
		return nil, err
	}
	if config.KeepPublished > 0 {
		db.KeepPublished()
	}
	db.SendHeaders(config.HeaderColumns)
	r := &Relay{config: config, publisher: publisher, log: log, store: db, starting: newOutageLog(log)}
	r.state.Store(&publish.State{Phase: publish.Connecting, Since: time.Now()})
	limits := core.DefaultLimits(config.MaxInFlight)
	if config.Mode == ModePoll {
		limits.AwaitStream = 0
	}
	r.core = core.New(limits)
	keys, err := newRoutingKeys(config.MetricsRoutingKeys)
	if err != nil {
		db.Close()
		return nil, err
	}
	r.counts, err = newMetrics(registry, keys,
		func() float64 { return float64(r.core.InFlight()) },
		func() float64 { return oneIf(r.core.Leads()) },
		func() float64 { return oneIf(r.settler.aside.suspended.Load()) })
	if err != nil {
		db.Close()
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	r.hooks = newHooks(config.Hooks, log, r.counts)
	refused := make(chan struct{}, 1)
	r.settler = &settler{
		core: r.core, store: db, publish: r.publish, log: log, counts: r.counts, hooks: r.hooks, tracer: config.Tracer,
		policy: store.Policy{
			MaxRetries: config.MaxRetries, BackoffTime: config.BackoffTime, MaxBackoff: config.MaxBackoff,
			DropExpired: config.OnExpired == OnExpiredDrop, Block: block,
		},
		batch: config.BatchSize, enough: enoughOf(config.MaxInFlight, config.BatchSize),
		arrived: make(chan struct{}, 1), hurried: make(chan struct{}, 1), alive: newHeartbeat(), trouble: newOutageLog(log), locked: newOutageLog(log),
		logHeaders: config.LogHeaders, refusals: rate.NewLimiter(1, 20), refused: func(err error) { refusedBy(err, refused) },
	}
	r.sweeper = &sweeper{
		core: r.core, store: db, sweeps: r.newSweeps(), log: log, alive: newHeartbeat(), trouble: newOutageLog(log), refused: r.settler.refused,
	}
	if config.Mode == ModeAuto {
		r.streamer.Store(&streamer{
			databaseURL: config.DatabaseURL,
			names:       config.Names(),
			headers:     config.HeaderColumns,
			core:        r.core, store: db, publish: r.publish, phase: func() publish.Phase { return r.publisherState().Phase },
			log: log, counts: r.counts,
			alive: newHeartbeat(), trouble: newOutageLog(log), refused: refused,
		})
	}
	if err := r.tellAll(registry); err != nil {
		db.Close()
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return r, nil
}

// tellAll registers what a scrape asks the whole relay for.
func (r *Relay) tellAll(registry prometheus.Registerer) error {
	return errors.Join(registry.Register(newStateCollector(r)), registry.Register(newSampleCollector(r)))
}

// Run relays until ctx is done, then takes no more, drains what is in flight within
// the shutdown timeout, and returns nil. It returns an error for what it cannot wait
// out: a configuration of the database that a person has to fix at the start, or a
// column that vanished.
func (r *Relay) Run(ctx context.Context) error {
	defer r.store.Close()
	defer r.phase.Store(phaseStopped)
	if err := r.preflight(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	a := r.start(ctx)
	r.phase.Store(phaseRunning)
	var err error
	select {
	case <-ctx.Done():
	case err = <-a.failed:
	}
	r.phase.Store(phaseStopping)
	r.log.Info("stopping: finishing messages in flight", "event", event.RelayStopping, "in_flight", r.core.InFlight())
	a.stop(r)
	if left := r.core.InFlight(); left > 0 {
		r.log.Warn("stopped with messages in flight: they will be published again from the table", "event", event.MessagesLeftInFlight, "messages", left)
	} else {
		r.log.Info("stopped", "event", event.RelayStopped)
	}
	return err
}

// Close releases what New has taken, for a relay that is not run; Run does so itself. It
// may be called more than once, but not while Run works.
func (r *Relay) Close() { r.store.Close() }

// preflight waits for the database and says what is wrong there.
func (r *Relay) preflight(ctx context.Context) error {
	wait := newBackoff()
	for ctx.Err() == nil {
		err := unreachable(r.check(ctx))
		if err == nil {
			err = r.checkRetention(ctx)
		}
		if err == nil {
			break
		}
		if problem.Is(err) {
			return err
		}
		if ctx.Err() == nil {
			r.starting.report(event.PostgresDown, "cannot reach Postgres: retrying", err)
		}
		_ = sleep(ctx, wait.NextBackOff())
	}
	if streamer := r.streamer.Load(); streamer != nil && ctx.Err() == nil {
		return streamer.preflight(ctx)
	}
	return nil
}

// unreachable makes a problem of what waiting does not fix at the start: a login
// that is rejected, a database that does not exist. Later the relay waits for both.
func unreachable(err error) error {
	switch pgcode.Of(err) {
	case pgcode.InvalidAuthorization, pgcode.InvalidPassword:
		return &problem.Problem{What: "Postgres rejects the login", Fix: "check user and password in --database-url", Err: err}
	case pgcode.InvalidCatalog:
		return &problem.Problem{What: "Postgres has no such database", Fix: "check the database in --database-url, or create it", Err: err}
	}
	return err
}

func (r *Relay) check(ctx context.Context) error {
	if err := r.store.Check(ctx); err != nil {
		return err
	}
	return r.store.Conn(ctx, func(conn *pgx.Conn) error {
		state, err := migrations.Status(ctx, conn, r.config.Table)
		if err != nil {
			return unreadable(err, conn, r.config.Table)
		}
		if state.Current > 0 && len(state.Pending) > 0 {
			return problem.New("cdc-relay migrate up", "table %s is at version %d, this relay needs %d",
				r.config.Table, state.Current, state.Latest)
		}
		if r.config.Mode == ModePoll {
			id, ok, err := r.store.LastID(ctx)
			if err != nil {
				return err
			}
			if ok { // what is inserted from now on was published by nobody else
				r.core.SetBoundary(id)
			}
		}
		server := conn.PgConn()
		r.log.Info("connected to Postgres", "event", event.PostgresConnected, "version", server.ParameterStatus("server_version"),
			"address", server.Conn().RemoteAddr().String(), "database", conn.Config().Database)
		return nil
	})
}

// unreadable makes a problem of a missing grant on the table of versions.
func unreadable(err error, conn *pgx.Conn, table outbox.Table) error {
	if !pgcode.Is(err, pgcode.InsufficientPrivilege) {
		return err
	}
	versions, user := migrations.VersionTable(table).SQL(), outbox.QuoteIdentifier(conn.Config().User)
	return &problem.Problem{What: "role " + user + " may not read the version of the tables", Fix: "GRANT SELECT ON " + versions + " TO " + user, Err: err}
}

// publish hands a message to the publisher.
func (r *Relay) publish(m *outbox.Message) {
	if name := r.config.OrderingKeyHeader; name != "" && m.OrderingKey != nil {
		m.Extra = append(m.Extra, outbox.Header{Name: name, Value: *m.OrderingKey})
	}
	r.publisher.Publish(m)
}

// StateChanged implements publish.Sink.
func (r *Relay) StateChanged(s publish.State) {
	r.state.Store(&s)
	r.blocked.changed(s)
	r.counts.phase(s.Phase)
	r.core.PublisherReady(s.Phase == publish.Ready)
}

// Deliver implements publish.Sink.
func (r *Relay) Deliver(result outbox.Result) { r.settler.deliver(result) }

func (r *Relay) publisherState() publish.State { return *r.state.Load() }

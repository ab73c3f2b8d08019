package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/fallback"
	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/outagelog"
	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/relay/metrics"
	"github.com/cdc-relay/cdc-relay/store"
)

// Relay publishes the rows of one outbox table to one broker. Create it with New, then call Run or Drain once.
type Relay struct {
	config    Config
	address   pgdial.Address
	publisher publish.Publisher
	log       *slog.Logger
	counts    *metrics.Metrics
	store     *store.Store
	core      *core.Core
	observer  *observer
	settler   *settler
	sweeper   *fallback.Sweeper
	sweeping  *heartbeat
	streamer  atomic.Pointer[streamer] // nil if the relay polls or drains
	leader    *leader
	reporter  *reporter
	clock     atomic.Pointer[core.ServerClock]
	starting  *outagelog.Log
	stuck     *outagelog.Log

	phase atomic.Int32 // one of the phases below; Run writes it, Health reads it
	state atomic.Pointer[publisherState]
	takes atomic.Bool // messages may leave
	// lookEvery is how often the relay looks whose code hangs on its tables.
	lookEvery time.Duration
	// unanswered finds outages that the publisher does not report.
	unanswered *unanswered
	awaited    awaited
}

const (
	phaseStarting int32 = iota
	phaseRunning
	phaseStopping
	phaseStopped
)

// New returns a relay that is not connected yet. The caller must call Run, Drain or Close. The publisher must have room
// for config.MaxInFlight messages; the relay runs and stops it. New registers metrics with the registry.
func New(config Config, publisher publish.Publisher, log *slog.Logger, registry prometheus.Registerer) (*Relay, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	log = event.Limited(log)
	address := pgdial.AddressOf(config.DatabaseURL, config.DatabaseURLFile)
	block := config.OnDeadLetter == OnDeadLetterBlock
	db, err := store.Open(address, store.Options{
		Table:         config.Table,
		Block:         block,
		Shard:         config.Shard,
		KeepPublished: config.KeepPublished,
		HeaderColumns: config.HeaderColumns,
	})
	if err != nil {
		return nil, err
	}
	r := &Relay{
		config:    config,
		address:   address,
		publisher: publisher,
		log:       log,
		store:     db,
		starting:  newOutageLog(log, address),
		stuck:     outagelog.NewPlain(log),
		lookEvery: time.Minute,
		awaited:   awaited{messages: make(map[*outbox.Message]struct{})},
	}
	r.state.Store(&publisherState{State: publish.State{Phase: publish.Connecting, Since: time.Now()}})
	r.unanswered = newUnanswered(log, max(time.Minute, 2*config.PollInterval), r.publisherChanged)
	r.core = core.New(core.DefaultLimits(config.MaxInFlight), core.Policy{
		MaxRetries: config.MaxRetries, BackoffTime: config.BackoffTime, MaxBackoff: config.MaxBackoff,
		DropExpired: config.OnExpired == OnExpiredDrop, Block: block,
	})
	r.counts, err = metrics.New(registry, config.metricsBy(),
		func() int { return r.core.View().InFlight },
		func() bool { return r.core.View().Leader },
		func() bool { return r.core.View().Suspended })
	if err != nil {
		db.Close()
		return nil, err
	}
	r.observer = &observer{
		unanswered: r.unanswered,
		counts:     r.counts,
		tracer:     config.Tracer,
		hooks:      newHooks(config.Hooks, config.LogHeaders, log, r.counts),
		log:        log,
		table:      config.Table,
		headers:    config.LogHeaders,
	}
	r.settler = &settler{
		core:     r.core,
		store:    db,
		table:    config.Table,
		observer: r.observer,
		log:      log,
		alive:    newHeartbeat(),
		trouble:  newOutageLog(log, address),
		pending:  newPendingRows(config.MaxInFlight, config.BatchSize),
		locked:   newOutageLog(log, address),
		commits:  newOutageLog(log, address),
	}
	r.settler.aside.Store(&Aside{})
	r.sweeping = newHeartbeat()
	r.sweeper = r.newSweeper()
	if config.Mode == ModeAuto {
		r.streamer.Store(&streamer{
			address:  address,
			names:    config.Names(),
			core:     r.core,
			store:    db,
			apply:    r.apply,
			log:      log,
			counts:   r.counts,
			alive:    newHeartbeat(),
			trouble:  newOutageLog(log, address),
			clock:    &r.clock,
			progress: streamProgress{behind: newOutageLog(log, address)},
			rows:     streamedRows{headers: config.HeaderColumns},
		})
	}
	r.leader, r.reporter = r.newLeader(), r.newReporter()
	if err := r.registerMetrics(registry); err != nil {
		db.Close()
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return r, nil
}

// registerMetrics registers the values that are read at a scrape.
func (r *Relay) registerMetrics(registry prometheus.Registerer) error {
	return errors.Join(
		metrics.RegisterState(registry, func() metrics.State {
			return metrics.State{
				Role:            r.role(),
				Publisher:       r.publisherState(),
				DatabaseAnswers: r.databaseAnswers(),
				Remembered:      r.core.View().Remembered,
				Heard:           r.streamHeard(),
				Blocked:         r.state.Load().blockedFor(time.Now()),
				Silent:          r.awaited.silent(),
				SetAside:        r.settler.aside.Load().Rows,
			}
		}),
		metrics.RegisterSample(registry, metrics.Sampler{
			Asks: func() bool { return r.phase.Load() == phaseRunning && r.role() != "standby" },
			Ask: func(ctx context.Context) (store.Sample, error) {
				return r.store.Sample(ctx, r.config.Names().Slot, r.settler.aside.Load().IDs)
			},
		}))
}

// Run relays until ctx is done. Then it takes no more rows, finishes those in flight within ShutdownTimeout, and
// returns nil.
//
// It returns an error only if a person is needed: a wrong configuration of the database at the start, a table or column
// that has vanished, or code of a role that is not trusted on the tables.
func (r *Relay) Run(ctx context.Context) error {
	defer r.store.Close()
	defer r.phase.Store(phaseStopped)
	defer event.Flush(r.log)
	if err := r.preflight(ctx); err != nil || ctx.Err() != nil {
		if err == nil {
			r.log.Info("stopped before it published anything", "event", event.RelayStopped)
		}
		return err
	}
	a := r.start(ctx)
	a.startForever(ctx, r)
	r.phase.Store(phaseRunning)
	var err error
	select {
	case <-ctx.Done():
	case err = <-a.failed:
	}
	r.phase.Store(phaseStopping)
	r.log.Info("stopping: finishing messages in flight",
		"event", event.RelayStopping, "in_flight", r.core.View().InFlight)
	a.stop(r)
	if left := r.core.View().InFlight; left > 0 {
		r.log.Warn("stopped with messages in flight: they will be published again from the table",
			"event", event.MessagesLeftInFlight, "messages", left)
	} else {
		r.log.Info("stopped", "event", event.RelayStopped)
	}
	return err
}

// Close releases the connections of a relay that does not run; Run and Drain do it themselves. It may be called more
// than once, but not during Run.
func (r *Relay) Close() { r.store.Close() }

// preflight waits for the database and checks it.
func (r *Relay) preflight(ctx context.Context) error {
	wait := newBackoff()
	for ctx.Err() == nil {
		err := r.unreachable(r.check(ctx))
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
			r.starting.Report(event.PostgresDown, "cannot reach Postgres: nothing is published; retrying", err)
		}
		_ = sleep(ctx, wait.NextBackOff())
	}
	if streamer := r.streamer.Load(); streamer != nil && ctx.Err() == nil {
		return streamer.preflight(ctx)
	}
	return nil
}

// unreachable turns errors that need a person at the start into problems: a rejected login or parameter, a database
// that is missing or that the role may not connect to, a catalog that it may not read. Later, the relay waits for all
// of them.
func (r *Relay) unreachable(err error) error {
	var what string
	switch pgcode.Of(err) {
	case pgerrcode.InvalidAuthorizationSpecification, pgerrcode.InvalidPassword:
		what = "Postgres rejects the login"
	case pgerrcode.InvalidCatalogName:
		what = "Postgres has no such database"
	case pgerrcode.InsufficientPrivilege:
		what = "the role may not connect to the database"
	case pgerrcode.UndefinedObject, pgerrcode.InvalidParameterValue, pgerrcode.CantChangeRuntimeParam:
		what = "Postgres rejects a parameter of the address"
	}
	hint := pgdial.Hint(err)
	if grant := r.address.Grant(err); grant != "" {
		what, hint = "the role may not read the system catalog", grant
	}
	if what == "" || hint == "" {
		return err
	}
	var failed *pgconn.ConnectError
	what = r.address.WithOrigin(what, err)
	if errors.As(err, &failed) { // what the connection was for does not matter
		err = failed
	}
	return &problem.Problem{What: what, Fix: hint, Err: err}
}

func (r *Relay) check(ctx context.Context) error {
	if r.config.Prepare != nil {
		if err := r.config.Prepare(ctx); err != nil {
			return err
		}
	}
	if err := r.store.Check(ctx); err != nil {
		return err
	}
	return r.store.Conn(ctx, func(conn *pgx.Conn) error {
		state, err := migrations.Status(ctx, conn, r.config.Table, r.config.TableOwner)
		if err != nil {
			return unreadable(err, conn, r.config.Table)
		}
		if state.Current > 0 && len(state.Pending) > 0 {
			return problem.New(problem.Command(r.config.Table, "setup", "--tables-only"),
				"table %s is at version %d, this relay needs %d",
				r.config.Table, state.Current, state.Latest)
		}
		server := conn.PgConn()
		r.log.Info("connected to Postgres", "event", event.PostgresConnected, "version", pgdial.Version(server),
			"address", server.Conn().RemoteAddr().String(), "database", conn.Config().Database)
		return nil
	})
}

// watchOwners ends the relay as the start would if code of a role that is not trusted hangs on its tables meanwhile: it
// would run with the rights of the relay. An error of the database is left to those who need its answer.
func (r *Relay) watchOwners(ctx context.Context) error {
	for sleep(ctx, r.lookEvery) == nil {
		err := r.store.Conn(ctx, func(conn *pgx.Conn) error {
			return migrations.CheckOwners(ctx, conn, r.config.Table, r.config.TableOwner)
		})
		if problem.Is(err) {
			return err
		}
	}
	return nil
}

// unreadable turns a missing grant on the version table into a problem.
func unreadable(err error, conn *pgx.Conn, table outbox.Table) error {
	if !pgcode.Is(err, pgerrcode.InsufficientPrivilege) {
		return err
	}
	versions, user := migrations.VersionTable(table).String(), outbox.Identifier(conn.Config().User)
	return &problem.Problem{
		What: fmt.Sprintf("role %s may not SELECT on table %s", user, versions),
		Fix:  "GRANT SELECT ON " + versions + " TO " + user + ";", Denied: true,
	}
}

// StateChanged implements publish.Sink.
func (r *Relay) StateChanged(s publish.State) {
	r.unanswered.stateChanged(s)
}

// publisherChanged records the publisher's state, and whether messages may leave.
func (r *Relay) publisherChanged(s publish.State, takes bool) {
	r.state.Store(r.state.Load().next(s, time.Now()))
	r.takes.Store(takes)
	r.counts.Phase(s.Phase)
	r.core.PublisherReady(takes)
}

func (r *Relay) publisherState() publish.State { return r.state.Load().State }

// publisherState is the publisher's state, and for how long the broker had blocked it before.
type publisherState struct {
	publish.State
	blocked time.Duration
}

func (p *publisherState) next(s publish.State, now time.Time) *publisherState {
	next := &publisherState{State: s, blocked: p.blocked}
	if s.Phase != publish.Blocked {
		next.blocked = p.blockedFor(now)
	}
	return next
}

func (p *publisherState) blockedFor(now time.Time) time.Duration {
	if p.Phase != publish.Blocked {
		return p.blocked
	}
	return p.blocked + now.Sub(p.Since)
}

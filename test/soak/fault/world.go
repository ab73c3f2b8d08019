package fault

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/services"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

// Config is what a world is to be made of.
type Config struct {
	Binary string // path of the cdc-relay that is put to the test
	Folder string // exists; the relays' logs go here and stay
	// DatabaseURL and AMQPURL are servers of the user's own. Where one is empty, a private server is started.
	DatabaseURL, AMQPURL string
	// Table, Slot and Publication are the relays' flags. Defaults: public.outbox, and cdc_relay_soak for both others.
	Table             outbox.Table
	Slot, Publication string
	RelayCount        int      // at least 1
	RelayArgs         []string // further flags of cdc-relay run
	MaxInFlight       int      // --max-in-flight; default 2000
	ShutdownTimeout   time.Duration
	// Standby starts a private Postgres with a streaming standby, Cluster a private broker of three nodes.
	Standby, Cluster bool
	// PostgresSettings and RabbitMQSettings go to private servers, as in services.Options.
	PostgresSettings, RabbitMQSettings []string
	// Recorder is the run's, for faults that write messages of their own; nil where there is none.
	Recorder *history.Recorder
	// Declare makes the exchanges, queues and bindings of the run, and may be called again: faults that have taken
	// them away call it. Nil where there is nothing to declare.
	Declare func(ctx context.Context, amqpURL string) error
	// Poison commits a transaction of ordinary messages with one in their midst whose body has so many bytes, for which
	// a private broker closes the channel. Nil where nobody writes.
	Poison func(ctx context.Context, bytes int) error
	// Violation is told what no promise allows: an unhealthy relay, a stop that took too long. It is called from
	// several goroutines. Log is told what goes on.
	Violation, Log func(string)
}

func (c Config) withDefaults() Config {
	set := func(field *string, value string) {
		if *field == "" {
			*field = value
		}
	}
	if c.Table.Name == "" {
		c.Table = outbox.Table{Schema: "public", Name: "outbox"}
	}
	set(&c.Slot, "cdc_relay_soak")
	set(&c.Publication, "cdc_relay_soak")
	c.RelayCount = max(c.RelayCount, 1)
	if c.MaxInFlight == 0 {
		c.MaxInFlight = 2000
	}
	if c.ShutdownTimeout == 0 {
		c.ShutdownTimeout = 30 * time.Second
	}
	if c.Violation == nil {
		c.Violation = func(string) {}
	}
	if c.Log == nil {
		c.Log = func(string) {}
	}
	return c
}

// World is what a run works on: the servers, the relays, and a proxy of its own between each relay and each server.
type World struct {
	Config
	// Postgres and RabbitMQ are the private servers; nil for one of the user's own. With a standby, Postgres is the
	// primary at the start.
	Postgres *services.Postgres
	RabbitMQ *services.RabbitMQ
	// Database and Broker are the addresses for writers and consumers, past the proxies.
	Database, Broker string
	Relays           []*Relay

	// pair is Postgres and its standby; nil where there is none.
	pair *pair
	// nodes are the brokers of which RabbitMQ is the first; nil where there is one only.
	nodes *services.RabbitMQCluster
	// relayBroker is the broker's address for the relays, before a proxy takes its host's place.
	relayBroker   string
	superuser     bool
	postgresMajor int
}

// NewWorld starts what is missing, sets the tables up, and makes the relays, which Start starts. Close ends all of it.
func NewWorld(ctx context.Context, config Config) (*World, error) {
	w := &World{Config: config.withDefaults()}
	if err := w.provide(ctx); err != nil {
		return nil, errors.Join(err, w.Close(context.WithoutCancel(ctx)))
	}
	return w, nil
}

func (w *World) provide(ctx context.Context) error {
	if err := w.providePostgres(ctx); err != nil {
		return err
	}
	if err := w.provideRabbitMQ(ctx); err != nil {
		return err
	}
	if w.Declare != nil {
		if err := w.Declare(ctx, w.Broker); err != nil {
			return fmt.Errorf("declare the topology: %w", err)
		}
	}
	if err := w.setUp(ctx); err != nil {
		return err
	}
	for i := range w.RelayCount {
		relay, err := newRelay(w, "relay-"+strconv.Itoa(i+1))
		if err != nil {
			return err
		}
		w.Relays = append(w.Relays, relay)
	}
	return nil
}

// Start starts every relay that does not run.
func (w *World) Start() error {
	var errs []error
	for _, relay := range w.Relays {
		if !relay.Running() {
			errs = append(errs, relay.Start())
		}
	}
	return errors.Join(errs...)
}

// Stop stops every relay in the orderly way, all at once, and waits for them. Those that are paused go on first.
func (w *World) Stop(ctx context.Context) error {
	return each(w.Relays, func(relay *Relay) error { return relay.Stop(ctx) })
}

// Close ends the relays, the proxies and the private servers. On a server of the user's own it drops slot and
// publication; the tables stay.
func (w *World) Close(ctx context.Context) error {
	var errs []error
	for _, relay := range w.Relays {
		errs = append(errs, relay.Kill(ctx))
	}
	for _, proxy := range append(w.PostgresProxies(), w.RabbitMQProxies()...) {
		proxy.Close()
	}
	if w.Postgres != nil {
		errs = append(errs, w.closePostgres(ctx))
	} else if len(w.Relays) > 0 {
		errs = append(errs, w.command(ctx, "teardown", "--yes", "--slot", w.Slot, "--publication", w.Publication))
	}
	errs = append(errs, w.closeRabbitMQ(ctx))
	return errors.Join(errs...)
}

// Can tells whether the fault can be made here, and why not.
func (w *World) Can(fault Fault) (can bool, why string) {
	var have Needs
	for need, there := range map[Needs]bool{
		OwnPostgres:   w.Postgres != nil,
		OwnRabbitMQ:   w.RabbitMQ != nil,
		Linux:         runtime.GOOS == "linux",
		Postgres17:    w.postgresMajor >= 17,
		Standby:       w.pair != nil,
		Cluster:       w.nodes != nil,
		SeveralRelays: len(w.Relays) > 1,
		PlainPostgres: w.plainPostgres(),
		Superuser:     w.superuser,
	} {
		if there {
			have |= need
		}
	}
	if missing := fault.Needs &^ have; missing != 0 {
		return false, fault.Name + " needs " + missing.String()
	}
	return true, ""
}

// Tell is what the history is told of a fault that is about to be made.
func (w *World) Tell(id int, f Fault, detail string) history.Fault {
	told := history.Fault{
		ID: id, Name: f.Name, Refuses: f.Refuses, LosesCommits: f.LosesCommits, LosesUnanswered: f.LosesUnanswered,
		Unmarked: f.Unmarked, EmptiesQueues: f.EmptiesQueues, Detail: detail,
	}
	if f.Repeats != nil {
		told.Repeats = f.Repeats(w)
	}
	return told
}

// setUp makes tables, publication and slot where they are missing, as a person does.
func (w *World) setUp(ctx context.Context) error {
	return w.command(ctx, "setup", "--slot", w.Slot, "--publication", w.Publication)
}

// command runs one command of the relay's program against the servers themselves.
func (w *World) command(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, w.Binary, append(args, "--table", w.Table.SQL())...)
	cmd.Env = relayEnvironment(w.Database, w.Broker)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cdc-relay %s: %w: %s", args[0], err, strings.TrimSpace(string(output)))
	}
	return nil
}

// relayEnvironment is this process's, without settings that were meant for another relay.
func relayEnvironment(database, broker string) []string {
	var env []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "CDC_RELAY_") {
			env = append(env, entry)
		}
	}
	return append(env, "CDC_RELAY_DATABASE_URL="+database, "CDC_RELAY_AMQP_URL="+broker)
}

func (w *World) logFile(relay string) string { return filepath.Join(w.Folder, relay+".log") }

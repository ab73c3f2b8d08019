package fault

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

// Config describes a world.
type Config struct {
	Binary     string   // path of the cdc-relay to test
	Folder     string   // an existing folder for the relays' logs
	RelayCount int      // at least 1
	RelayArgs  []string // more flags of cdc-relay run
	// Declare creates the exchanges, queues and bindings of the run.
	Declare func(ctx context.Context, amqpURL string) error
	// Violation is called for everything that no promise allows, such as an unhealthy relay or a slow stop, from
	// several goroutines. Log is called with other news.
	Violation, Log func(string)
}

// runName is the name of the slot and of the publication.
const runName = "cdc_relay_soak"

// The relays' --max-in-flight and --shutdown-timeout.
const (
	maxInFlight     = 2000
	shutdownTimeout = 30 * time.Second
)

// World holds the servers and the relays of a run, and a proxy between each relay and each server.
type World struct {
	Config
	// Postgres and RabbitMQ are private servers.
	Postgres *services.Postgres
	RabbitMQ *services.RabbitMQ
	// Database and Broker are the addresses for writers and consumers, bypassing the proxies.
	Database, Broker string
	Relays           []*Relay
	// Table, Slot and Publication are the relays' flags.
	Table             outbox.Table
	Slot, Publication string

	// relayBroker is the broker's address for the relays, before a proxy replaces its host.
	relayBroker string
}

// NewWorld starts the servers. Close ends everything.
func NewWorld(ctx context.Context, config Config) (*World, error) {
	w := &World{
		Config: config, Table: outbox.Table{Schema: "public", Name: "outbox"},
		Slot: runName, Publication: runName,
	}
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
	if err := w.Declare(ctx, w.Broker); err != nil {
		return fmt.Errorf("declare the topology: %w", err)
	}
	return nil
}

// Deploy sets up the tables, and creates the relays without starting them. It removes those of an earlier run.
func (w *World) Deploy(ctx context.Context) error {
	if w.Relays != nil {
		if err := w.clear(ctx); err != nil {
			return fmt.Errorf("remove what an earlier run left: %w", err)
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

func (w *World) clear(ctx context.Context) error {
	err := w.closeRelays(ctx)
	w.Relays = nil
	if err := errors.Join(err, w.dropSlot(ctx)); err != nil {
		return err
	}
	return errors.Join(w.Postgres.Exec(ctx, "", "DROP DATABASE "+runDatabase+" WITH (FORCE)"),
		w.Postgres.Exec(ctx, "", "CREATE DATABASE "+runDatabase))
}

func (w *World) closeRelays(ctx context.Context) error {
	err := each(w.Relays, func(relay *Relay) error { return relay.Kill(ctx) })
	for _, relay := range w.Relays {
		relay.Postgres.Close()
		relay.RabbitMQ.Close()
	}
	return err
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

// Stop stops all relays in order, at the same time, and waits for them. It resumes paused ones first.
func (w *World) Stop(ctx context.Context) error {
	return each(w.Relays, func(relay *Relay) error { return relay.Stop(ctx) })
}

// Close ends the relays, the proxies and the servers.
func (w *World) Close(ctx context.Context) error {
	errs := []error{w.closeRelays(ctx)}
	if w.Postgres != nil {
		errs = append(errs, w.Postgres.Close(ctx))
	}
	if w.RabbitMQ != nil {
		errs = append(errs, w.RabbitMQ.Close(ctx))
	}
	return errors.Join(errs...)
}

// Tell returns what the history records of a fault that is about to begin.
func (w *World) Tell(id int, f Fault, detail string) history.Fault {
	told := history.Fault{
		ID: id, Name: f.Name, Refuses: f.Refuses, Unmarked: f.Unmarked, Detail: detail,
	}
	if f.Duplicates != nil {
		told.Duplicates = f.Duplicates(w)
	}
	return told
}

// setUp creates missing tables, publication and slot, as a person does.
func (w *World) setUp(ctx context.Context) error {
	return w.command(ctx, "setup", "--slot", w.Slot, "--publication", w.Publication)
}

// command runs one command of cdc-relay, bypassing the proxies.
func (w *World) command(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, w.Binary, append(args, "--table", w.Table.SQL())...)
	cmd.Env = relayEnvironment(w.Database, w.Broker)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cdc-relay %s: %w: %s", args[0], err, strings.TrimSpace(string(output)))
	}
	return nil
}

// relayEnvironment is this process's environment without settings of another relay.
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

package soak

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/program"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// The names of what a run has on its private servers. The relays log in to RabbitMQ as their own user: faults take
// permissions from it that consumers keep.
const (
	outboxTable     = "outbox"
	deadLetterTable = "outbox_dead_letter"
	slot            = "cdc_relay_soak" // and publication
	runDatabase     = "soak"
	runVHost        = "soak"
	relayUser       = "relay"
	relayPassword   = "relay"
)

// runWalSenderTimeout is the setting of the server: a frozen owner must lose the slot within the run.
const runWalSenderTimeout = 5 * time.Second

// world has private servers, and the relays of a run with a proxy between each relay and each server.
type world struct {
	binary    string // the cdc-relay to test
	postgres  *services.Postgres
	rabbitMQ  *services.RabbitMQ
	database  string // addresses that bypass the proxies
	broker    string
	logs      string // the folder for the relays' logs
	relayArgs []string
	relays    []*relay
	// violation is called for what no promise allows, from several goroutines.
	violation func(string)
}

// startServers starts the servers, and declares what the messages need. close ends everything.
func (w *world) startServers(ctx context.Context, log func(string)) (err error) {
	options := services.Options{Private: true, Log: log}
	if w.postgres, err = services.StartPostgres(ctx, options); err != nil {
		return err
	}
	w.database = w.postgres.URL(runDatabase)
	if err := w.configure(ctx, "wal_sender_timeout", runWalSenderTimeout.String()); err != nil {
		return err
	}
	if w.rabbitMQ, err = services.StartRabbitMQ(ctx, options); err != nil {
		return err
	}
	w.broker = w.rabbitMQ.URL(runVHost)
	if err := w.rabbitMQ.AddVHost(ctx, runVHost); err != nil {
		return err
	}
	if err := errors.Join(w.letIn(ctx), w.permit(ctx)); err != nil {
		return err
	}
	return declare(w.broker)
}

// letIn creates the user of the relays, or sets its password again.
func (w *world) letIn(ctx context.Context) error {
	return w.rabbitMQ.AddUser(ctx, relayUser, relayPassword)
}

// permit gives the relays all permissions.
func (w *world) permit(ctx context.Context) error {
	return w.rabbitMQ.Permit(ctx, runVHost, relayUser, services.AllPermissions())
}

// deploy creates an empty database, and relays without starting them. It removes those of an earlier run.
func (w *world) deploy(ctx context.Context, relays int) error {
	if w.relays != nil {
		if err := errors.Join(w.closeRelays(ctx), w.dropSlot(ctx)); err != nil {
			return fmt.Errorf("remove what an earlier run left: %w", err)
		}
		w.relays = nil
	}
	err := w.postgres.Exec(ctx, "", "DROP DATABASE IF EXISTS "+runDatabase+" WITH (FORCE)",
		"CREATE DATABASE "+runDatabase)
	if err != nil {
		return err
	}
	if err := w.setUp(ctx); err != nil {
		return err
	}
	for i := range relays {
		relay, err := newRelay(w, "relay-"+strconv.Itoa(i+1))
		if err != nil {
			return err
		}
		w.relays = append(w.relays, relay)
	}
	return w.exec(ctx, `CREATE TABLE soak_transaction (id bigint PRIMARY KEY)`)
}

// setUp creates missing tables, publication and slot, as a person does.
func (w *world) setUp(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, w.binary, "setup", "--slot", slot, "--publication", slot)
	cmd.Env = program.Environment("CDC_RELAY_DATABASE_URL="+w.database, "CDC_RELAY_AMQP_URL="+w.broker)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cdc-relay setup: %w: %s", err, strings.TrimSpace(string(output)))
	}
	return nil
}

// start starts every relay that does not run.
func (w *world) start(context.Context) error {
	var errs []error
	for _, relay := range w.relays {
		if relay.running() == nil {
			errs = append(errs, relay.start())
		}
	}
	return errors.Join(errs...)
}

func (w *world) stop(ctx context.Context) error {
	return each(w.relays, func(relay *relay) error { return relay.stop(ctx) })
}

func (w *world) closeRelays(ctx context.Context) error {
	err := each(w.relays, func(relay *relay) error { return relay.kill(ctx) })
	for _, relay := range w.relays {
		relay.postgres.Close()
		relay.rabbitMQ.Close()
	}
	return err
}

// close ends the relays, the proxies and the servers.
func (w *world) close(ctx context.Context) error {
	errs := []error{w.closeRelays(ctx)}
	if w.postgres != nil {
		errs = append(errs, w.postgres.Close(ctx))
	}
	if w.rabbitMQ != nil {
		errs = append(errs, w.rabbitMQ.Close(ctx))
	}
	return errors.Join(errs...)
}

// on calls f with a new connection to the run's database.
func (w *world) on(ctx context.Context, f func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, w.database)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	return f(conn)
}

// exec runs statements in the run's database, each in its own transaction.
func (w *world) exec(ctx context.Context, statements ...string) error {
	return w.postgres.Exec(ctx, runDatabase, statements...)
}

// query reads one row of one column.
func (w *world) query(ctx context.Context, into any, sql string, args ...any) error {
	return w.on(ctx, func(conn *pgx.Conn) error { return conn.QueryRow(ctx, sql, args...).Scan(into) })
}

func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

// proxied starts a proxy for a server, and returns its address with that of the proxy.
func proxied(address string, sort services.Sorter) (*services.Proxy, *url.URL, error) {
	target, err := url.Parse(address)
	if err != nil {
		return nil, nil, err
	}
	proxy, err := services.StartProxy(target.Host, sort)
	if err != nil {
		return nil, nil, fmt.Errorf("start a proxy: %w", err)
	}
	target.Host = proxy.Addr()
	return proxy, target, nil
}

package soak

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/program"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
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

// drain says how far the outbox is from empty.
type drain struct {
	waiting  int   // rows in the outbox
	attempts int64 // of these rows
	writers  int   // sessions of writers whose last transaction may not have ended
}

func (w *world) look(ctx context.Context) (d drain, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute) // however full the table is
	defer cancel()
	err = w.on(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT count(*), coalesce(sum(attempts), 0),
			(SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database())
			FROM `+outboxTable, writerName).Scan(&d.waiting, &d.attempts, &d.writers)
	})
	return d, err
}

// awaitDrained waits, after the writers stopped and while the relays run, until the outbox is empty and no transaction
// is open. It gives up if nothing has moved for the time quiet, which must be longer than the longest wait between two
// attempts. It also ends with ctx.
func (w *world) awaitDrained(ctx context.Context, quiet time.Duration) error {
	var before drain
	moved := time.Now()
	for {
		began := time.Now()
		now, err := w.look(ctx)
		if err == nil && now.waiting == 0 && now.writers == 0 {
			return nil
		}
		if err == nil && now != before {
			before, moved = now, time.Now()
		}
		if time.Since(moved) > quiet {
			stuck := fmt.Errorf("nothing has left the outbox for %s: %d rows wait, and %d writers are connected",
				quiet, before.waiting, before.writers)
			return errors.Join(stuck, err)
		}
		if !program.Pause(ctx, max(100*time.Millisecond, 5*time.Since(began))) {
			return fmt.Errorf("wait for an empty outbox: %w", errors.Join(context.Cause(ctx), err))
		}
	}
}

// recordTables reports the final state: the rows of the outbox and the dead-letter table, and the committed
// transactions. Nothing writes any more.
func (w *world) recordTables(ctx context.Context, record *history.Recorder) error {
	return w.on(ctx, func(conn *pgx.Conn) error {
		var id [16]byte
		var r history.Row
		rows, _ := conn.Query(ctx, `SELECT message_id, false, attempts, '', coalesce(last_error, '')
			FROM `+outboxTable+` UNION ALL
			SELECT message_id, true, attempts, failure_reason, coalesce(last_error, '') FROM `+deadLetterTable)
		into := []any{&id, &r.DeadLetter, &r.Attempts, &r.Reason, &r.LastError}
		_, err := pgx.ForEachRow(rows, into, func() error {
			r.Message = id
			record.Remaining(r)
			return nil
		})
		if err != nil {
			return fmt.Errorf("read the final state: %w", err)
		}
		var kept int64
		rows, _ = conn.Query(ctx, `SELECT id FROM soak_transaction ORDER BY id`)
		_, err = pgx.ForEachRow(rows, []any{&kept}, func() error {
			record.Kept(kept)
			return nil
		})
		return err
	})
}

// Besides the default exchange there are a direct and a topic exchange, both bound to every queue. The routing key of
// the direct exchange is the name of the queue, that of the topic exchange begins with this name and a dot.
const directExchange, topicExchange = "soak.direct", "soak.topic"

// plainQueues and keyedQueues are the numbers of queues for messages without and with an ordering key. A key always
// goes to the same queue, which has one consumer, so that its order is visible.
const plainQueues, keyedQueues = 3, 3

func plainQueue(i int) string { return fmt.Sprintf("soak.plain.%d", i) }
func keyedQueue(i int) string { return fmt.Sprintf("soak.keyed.%d", i) }

func allQueues() (names []string) {
	for i := range plainQueues {
		names = append(names, plainQueue(i))
	}
	for i := range keyedQueues {
		names = append(names, keyedQueue(i))
	}
	return names
}

// queueOf returns the queue of an ordering key.
func queueOf(key string) string {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(key)) // never fails
	return keyedQueue(int(hash.Sum32() % keyedQueues))
}

// declare creates the missing exchanges, queues and bindings.
func declare(broker string) error {
	conn, err := program.Dial(broker, "cdc-relay-soak topology")
	if err != nil {
		return err
	}
	defer program.HangUp(conn)
	channel, err := conn.Channel()
	if err != nil {
		return err
	}
	for name, kind := range map[string]string{directExchange: amqp.ExchangeDirect, topicExchange: amqp.ExchangeTopic} {
		if err := channel.ExchangeDeclare(name, kind, true, false, false, false, nil); err != nil {
			return fmt.Errorf("declare the exchange %s: %w", name, err)
		}
	}
	for _, queue := range allQueues() {
		if err := declareQueue(channel, queue); err != nil {
			return fmt.Errorf("declare the queue %s: %w", queue, err)
		}
	}
	return nil
}

func declareQueue(channel *amqp.Channel, queue string) error {
	if _, err := channel.QueueDeclare(queue, true, false, false, false, nil); err != nil {
		return err
	}
	if err := channel.QueueBind(queue, queue, directExchange, false, nil); err != nil {
		return err
	}
	return channel.QueueBind(queue, queue+".#", topicExchange, false, nil)
}

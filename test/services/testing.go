package services

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
)

// cleanupTimeout limits the cleanup after a test, which must not hang if the test has broken its server.
const cleanupTimeout = 5 * time.Minute

// Name returns a unique name that is valid for a database, slot, publication, virtual host and queue: lower case
// letters, digits and underscores, at most 53.
func Name(t testing.TB) string {
	t.Helper()
	return uniqueName(t.Name())
}

// SharedPostgres returns the server that all tests of the process share. Tests must not stop or configure it.
func SharedPostgres(t testing.TB) *Postgres {
	t.Helper()
	server, err := sharedPostgres()
	Need(t, err)
	return server
}

func sharedPostgres() (*Postgres, error) {
	return shared.postgres.get(func() (*Postgres, error) {
		server, err := StartPostgres(context.Background(), Options{})
		if err == nil {
			shared.closers.add(server.Close)
			server.admin = &adminConnection{url: server.URL("")}
			shared.closers.add(server.admin.close)
		}
		return server, err
	})
}

// SharedRabbitMQ returns the broker that all tests of the process share. Tests must not stop or configure it.
func SharedRabbitMQ(t testing.TB) *RabbitMQ {
	t.Helper()
	server, err := sharedRabbitMQ()
	Need(t, err)
	return server
}

func sharedRabbitMQ() (*RabbitMQ, error) {
	return shared.rabbitmq.get(func() (*RabbitMQ, error) {
		server, err := StartRabbitMQ(context.Background(), Options{})
		if err == nil {
			shared.closers.add(server.Close)
		}
		return server, err
	})
}

// PrivatePostgres starts a server for this test only, which may stop, kill and configure it. Settings are like
// "wal_sender_timeout=2s".
func PrivatePostgres(t testing.TB, settings ...string) *Postgres {
	t.Helper()
	server, err := StartPostgres(t.Context(), Options{Private: true, Settings: settings, Log: logTo(t)})
	Need(t, err)
	closeAfter(t, server.Close)
	return server
}

// Standby starts a standby of a private server, for this test only.
func Standby(t testing.TB, primary *Postgres) *Postgres {
	t.Helper()
	standby, err := primary.StartStandby(t.Context())
	Need(t, err)
	closeAfter(t, standby.Close)
	return standby
}

// PrivateRabbitMQ starts a broker for this test only, which may stop, kill and configure it. Settings are lines of
// rabbitmq.conf, such as "heartbeat = 2".
func PrivateRabbitMQ(t testing.TB, settings ...string) *RabbitMQ {
	t.Helper()
	server, err := StartRabbitMQ(t.Context(), Options{Private: true, Settings: settings, Log: logTo(t)})
	Need(t, err)
	closeAfter(t, server.Close)
	return server
}

// PrivateRabbitMQCluster starts a cluster of n brokers for this test only; see [StartRabbitMQCluster].
func PrivateRabbitMQCluster(t testing.TB, n int, settings ...string) *RabbitMQCluster {
	t.Helper()
	cluster, err := StartRabbitMQCluster(t.Context(), n, Options{Settings: settings, Log: logTo(t)})
	Need(t, err)
	closeAfter(t, cluster.Close)
	return cluster
}

// heartbeat is that of a test's own connections. The library's 10 s end the connection after 15 s without an answer,
// and a broker on a busy machine can need longer.
const heartbeat = time.Minute

// Must ends a test after an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// DialAMQP connects to a broker, and closes the connection after the test.
func DialAMQP(t testing.TB, amqpURL string) *amqp.Connection {
	t.Helper()
	return dialAMQP(t, amqpURL, t.Name())
}

func dialAMQP(t testing.TB, amqpURL, name string) *amqp.Connection {
	t.Helper()
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName(name)
	conn, err := amqp.DialConfig(amqpURL, amqp.Config{Heartbeat: heartbeat, Properties: properties})
	Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Certificate names the PEM files of a server's certificate, and of the CA that signs the clients' certificates.
type Certificate struct{ CA, Cert, Key string }

// TLSRabbitMQ starts a private broker with a TLS listener at address ("127.0.0.1:port"). It accepts
// only clients with a certificate of the CA.
func TLSRabbitMQ(t testing.TB, c Certificate) (server *RabbitMQ, address string) {
	t.Helper()
	port, err := FreePort()
	Must(t, err)
	address = "127.0.0.1:" + strconv.Itoa(port)
	return PrivateRabbitMQ(t,
		"listeners.ssl.1 = "+address,
		"ssl_options.cacertfile = "+c.CA,
		"ssl_options.certfile = "+c.Cert,
		"ssl_options.keyfile = "+c.Key,
		"ssl_options.verify = verify_peer",
		"ssl_options.fail_if_no_peer_cert = true"), address
}

// Need fails a test if its server cannot be started. The test is skipped if this machine can start no server and nobody
// named one, in which case TestServersAreAvailable of this package fails for all of them; and also if the servers are
// containers and it needs an own one.
func Need(t testing.TB, err error) {
	t.Helper()
	switch {
	case err == nil:
	case errors.Is(err, errUnavailable) && (!serversNamed() || Way(os.Getenv(EnvWay)) == Containers):
		t.Skip("no server to run against, see TestServersAreAvailable of test/services")
	default:
		t.Fatal(err)
	}
}

// serversNamed reports whether a person or scripts/with-services named servers or a way to get them.
func serversNamed() bool {
	for _, variable := range []string{EnvWay, EnvDatabase, EnvAMQP, EnvState, EnvPostgresBin} {
		if os.Getenv(variable) != "" {
			return true
		}
	}
	return false
}

func logTo(t testing.TB) func(string) {
	return func(line string) { t.Log(line) }
}

// closeAfter closes a private server after the test, or when the tests are interrupted.
func closeAfter(t testing.TB, closer func(context.Context) error) {
	shared.closers.add(closer)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := closer(ctx); err != nil {
			t.Errorf("close a private server: %v", err)
		}
	})
}

// Database creates an empty database for this test on the shared server and returns its URL. The options are those of
// CREATE DATABASE, such as "TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'". After the test it drops
// the database with its replication slots.
func Database(t testing.TB, options ...string) string {
	t.Helper()
	return SharedPostgres(t).Database(t, options...)
}

// Template returns an option of [Database]: the new database starts as a copy of one that fill has filled. All tests of
// the process share it by its name. A copy costs less than filling each database.
func Template(t testing.TB, name string, fill func(ctx context.Context, url string) error) (option string) {
	t.Helper()
	server := SharedPostgres(t)
	template, _ := shared.templates.LoadOrStore(name, new(lazy[string]))
	database, err := template.(*lazy[string]).get(func() (string, error) {
		database := uniqueName("template_" + name)
		ctx := context.Background() // other tests need it, too
		err := server.administer(ctx,
			func(conn *pgx.Conn) error { return createDatabase(ctx, conn, database) })
		if err != nil {
			return "", err
		}
		shared.closers.add(func(ctx context.Context) error {
			return server.administer(ctx, func(conn *pgx.Conn) error { return dropDatabase(ctx, conn, database) })
		})
		return database, fill(ctx, server.URL(database))
	})
	if err != nil {
		t.Fatalf("create the database %s: %v", database, err)
	}
	return "TEMPLATE " + database
}

// Database creates an empty database for this test on this server; see the function of the same name.
func (p *Postgres) Database(t testing.TB, options ...string) string {
	t.Helper()
	name := Name(t)
	create := func(conn *pgx.Conn) error { return createDatabase(t.Context(), conn, name, options...) }
	if err := p.administer(t.Context(), create); err != nil {
		t.Fatalf("create a database: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		drop := func(conn *pgx.Conn) error { return dropDatabase(ctx, conn, name) }
		if err := p.administer(ctx, drop); err != nil {
			t.Logf("the database %s stays: %v", name, err) // harmless for other tests; the server may be stopped
		}
	})
	return p.URL(name)
}

func createDatabase(ctx context.Context, conn *pgx.Conn, name string, options ...string) error {
	// This strategy takes a third of the default's processor time.
	statement := "CREATE DATABASE " + name + " STRATEGY file_copy"
	_, err := conn.Exec(ctx, strings.Join(append([]string{statement}, options...), " "))
	return err
}

// dropDatabase drops the slots first: WITH (FORCE) ends connections, but a slot prevents it.
func dropDatabase(ctx context.Context, conn *pgx.Conn, name string) error {
	const endWalsenders = `SELECT count(pg_terminate_backend(active_pid, 5000)) FROM pg_replication_slots
		WHERE database = $1 AND active_pid IS NOT NULL`
	const dropSlots = `SELECT count(pg_drop_replication_slot(slot_name)) FROM pg_replication_slots WHERE database = $1`
	for _, statement := range []string{endWalsenders, dropSlots} {
		if _, err := conn.Exec(ctx, statement, name); err != nil {
			return fmt.Errorf("drop the slots of %s: %w", name, err)
		}
	}
	_, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
	return err
}

// VHost creates a virtual host for this test on the shared broker and returns its URL. It is deleted after the test.
// For a broker that is known only by its address, VHost returns that address. So tests take the names of queues and
// exchanges from [Name].
func VHost(t testing.TB) string {
	t.Helper()
	return SharedRabbitMQ(t).VHost(t)
}

// VHost creates a virtual host for this test on this broker; see the function of the same name.
func (r *RabbitMQ) VHost(t testing.TB) string {
	t.Helper()
	if r.manage.URL == "" {
		return r.URL("")
	}
	name := Name(t)
	if err := r.AddVHost(t.Context(), name); err != nil {
		t.Fatalf("add a virtual host: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := r.DeleteVHost(ctx, name); err != nil {
			t.Logf("the virtual host %s stays: %v", name, err)
		}
	})
	return r.URL(name)
}

// Thorough skips a test in the quick run of scripts/test (go test -short), for a reason such as "waits for a timeout".
// Other runs include it.
func Thorough(t testing.TB, why string) {
	t.Helper()
	if testing.Short() {
		t.Skipf("left out of the quick run: %s; scripts/test --all has it", why)
	}
}

// cookie returns a secret for one broker and its tools.
func cookie() string { return crand.Text() }

// uniqueName returns a valid name for a database, slot, publication, virtual host or queue: [a-z][a-z0-9_]{0,62}.
func uniqueName(hint string) string {
	var name strings.Builder
	name.WriteString("t_")
	for _, char := range strings.ToLower(hint) {
		if name.Len() == 36 {
			break
		}
		if char >= 'a' && char <= 'z' || char >= '0' && char <= '9' {
			name.WriteRune(char)
		} else {
			name.WriteByte('_')
		}
	}
	name.WriteByte('_')
	name.WriteString(strings.ToLower(crand.Text()[:16]))
	return name.String()
}

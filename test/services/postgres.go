package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/await"
)

// Every private server has this user and password, so that tests can search logs for the password.
const (
	postgresUser     = "postgres"
	postgresPassword = "postgres"
	postgresDatabase = "postgres"
)

// StopMode is a mode of pg_ctl stop -m.
type StopMode syscall.Signal

// The modes of pg_ctl stop.
const (
	Fast      = StopMode(syscall.SIGINT)  // disconnects clients, waits until walsenders have sent everything
	Immediate = StopMode(syscall.SIGQUIT) // skips the shutdown checkpoint: the next start recovers
)

// Postgres is one running server.
type Postgres struct {
	server
	site *site // nil if the server does not run from this machine's programs

	// admin is set for the shared server. An open connection would delay the stop of a private one.
	admin *adminConnection
}

// adminConnection creates and drops databases. A new connection for each would take longer than the statement.
type adminConnection struct {
	url  string
	mu   sync.Mutex
	conn *pgx.Conn // nil before its first use
}

// use runs f with the connection. It connects again after a connection was lost.
func (a *adminConnection) use(ctx context.Context, f func(conn *pgx.Conn) error) (err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conn == nil || a.conn.IsClosed() {
		if a.conn, err = pgx.Connect(ctx, a.url); err != nil {
			return err
		}
	}
	return f(a.conn)
}

func (a *adminConnection) close(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conn == nil {
		return nil
	}
	return a.conn.Close(ctx)
}

// administer runs f with a connection to the database that exists from the start.
func (p *Postgres) administer(ctx context.Context, f func(conn *pgx.Conn) error) error {
	admin := p.admin
	if admin == nil {
		admin = &adminConnection{url: p.URL("")}
		defer func() { _ = admin.close(context.WithoutCancel(ctx)) }()
	}
	return admin.use(ctx, f)
}

// postgresSettings allows many slots and connections, and accepts only connections from this machine.
func postgresSettings(more []string) []string {
	return append([]string{
		"wal_level=logical", "max_replication_slots=100", "max_wal_senders=100", "max_connections=300",
		"listen_addresses=127.0.0.1", "unix_socket_directories=", "log_line_prefix=%m [%p] ",
	}, more...)
}

func postgresAddress(host string, port int) *url.URL {
	return &url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(postgresUser, postgresPassword),
		Host:     net.JoinHostPort(host, strconv.Itoa(port)),
		Path:     "/" + postgresDatabase,
		RawQuery: "sslmode=disable",
	}
}

// URL returns the address of a database of the server; "" means the database that exists from the start.
func (p *Postgres) URL(database string) string {
	address := *p.address
	if database != "" {
		address.Path = "/" + database
	}
	return address.String()
}

// Major returns the major version, such as 15.
func (p *Postgres) Major() int { return digits(p.Version) }

// Stop asks the server to stop and waits until it has ended.
func (p *Postgres) Stop(ctx context.Context, mode StopMode) error {
	return p.end(ctx, syscall.Signal(mode))
}

// Start starts a stopped server with its old port and data, and waits until it accepts connections.
func (p *Postgres) Start(ctx context.Context) error { return p.startReady(ctx, p.connect) }

// Restart stops and starts the server.
func (p *Postgres) Restart(ctx context.Context, mode StopMode) error {
	if err := p.Stop(ctx, mode); err != nil {
		return err
	}
	return p.Start(ctx)
}

// Close ends the server and removes its data. It does nothing to a server given by the environment.
func (p *Postgres) Close(ctx context.Context) error {
	if p.running() != nil { // a killed server leaves its shared memory behind
		_ = p.Resume(ctx)
		_ = p.Stop(ctx, Immediate)
	}
	return p.close(ctx)
}

// Exec runs statements in a database, each in its own transaction; "" means the database that exists from the start.
func (p *Postgres) Exec(ctx context.Context, database string, statements ...string) error {
	conn, err := pgx.Connect(ctx, p.URL(database))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// connect tests whether the server is ready, and reads its version.
func (p *Postgres) connect(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, p.URL(""))
	if err != nil {
		return err
	}
	// A distribution adds its own version.
	p.Version, _, _ = strings.Cut(conn.PgConn().ParameterStatus("server_version"), " ")
	return conn.Close(ctx)
}

// StallCommits makes each commit with synchronous_commit = on wait for a standby that does not exist, until release is
// called. It returns when a commit waits: the setting takes effect some time after the reload.
func (p *Postgres) StallCommits(t testing.TB) (release func()) {
	t.Helper()
	Must(t, p.Exec(t.Context(), "", `ALTER SYSTEM SET synchronous_standby_names = 'nobody'`, `SELECT pg_reload_conf()`))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.commitUntil(ctx) }()
	conn, err := pgx.Connect(ctx, p.URL(""))
	Must(t, err)
	await.Until(t, "a commit waits for the standby", func() (waits bool) {
		const sql = `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')`
		Must(t, conn.QueryRow(ctx, sql).Scan(&waits))
		return waits
	})
	Must(t, conn.Close(ctx))
	return func() {
		t.Helper()
		Must(t, p.Exec(t.Context(), "", `ALTER SYSTEM RESET synchronous_standby_names`, `SELECT pg_reload_conf()`))
		stop()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
}

func (p *Postgres) commitUntil(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, p.URL(""))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err = conn.Exec(ctx, `SET synchronous_commit = 'on'`); err != nil {
		return err
	}
	for err == nil {
		_, err = conn.Exec(ctx, `SELECT pg_logical_emit_message(true, 'stall', '')`)
	}
	return err
}

package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// findPostgres returns the folder with initdb and postgres.
func findPostgres() (string, error) {
	if folder := os.Getenv(EnvPostgresBin); folder != "" {
		if !postgresIn(folder) {
			return "", fmt.Errorf("%s: there is no initdb and postgres in the folder %s", EnvPostgresBin, folder)
		}
		return folder, nil
	}
	var folders []string
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			folders = append(folders, filepath.Dir(path))
		}
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin",
		"/opt/homebrew/opt/postgresql*/bin", "/usr/local/opt/postgresql*/bin",
		"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin", "/Applications/Postgres.app/Contents/Versions/*/bin",
	} {
		matches, _ := filepath.Glob(pattern)
		slices.SortFunc(matches, func(a, b string) int { return digits(b) - digits(a) }) // newest first
		folders = append(folders, matches...)
	}
	for _, folder := range folders {
		if postgresIn(folder) {
			return folder, nil
		}
	}
	return "", &missingError{server: "Postgres", packages: "postgresql", formula: "postgresql@17"}
}

func postgresIn(folder string) bool {
	return executable(filepath.Join(folder, "initdb")) && executable(filepath.Join(folder, "postgres"))
}

// digits returns the first number in a path: the version, in the folders searched.
func digits(path string) int {
	start := strings.IndexAny(path, "0123456789")
	if start < 0 {
		return 0
	}
	end := start
	for end < len(path) && path[end] >= '0' && path[end] <= '9' {
		end++
	}
	n, _ := strconv.Atoi(path[start:end])
	return n
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir() && info.Mode().Perm()&0o111 != 0
}

// site holds the programs and the data folder of a local server.
type site struct {
	bin, folder, data string
	port              int
	who               account
}

// localPostgres prepares a private server without starting it.
func localPostgres(ctx context.Context, opts Options) (*Postgres, error) {
	bin, err := find(ctx, opts, findPostgres)
	if err != nil {
		return nil, err
	}
	who, err := serverAccount("postgres")
	if err != nil {
		return nil, err
	}
	server, err := (&site{bin: bin, who: who}).another(opts.Settings)
	if err != nil {
		return nil, err
	}
	if err := initPostgres(ctx, bin, who, server.site.folder); err != nil {
		_ = server.Close(ctx)
		return nil, err
	}
	return server, nil
}

// another prepares a server with the same programs, its own port and its own folder, without data.
func (s *site) another(settings []string) (*Postgres, error) {
	folder, err := s.who.newFolder("postgres")
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		_ = os.RemoveAll(folder)
		return nil, err
	}
	at := &site{bin: s.bin, folder: folder, data: filepath.Join(folder, "data"), port: port, who: s.who}
	address := postgresAddress("127.0.0.1", port)
	return &Postgres{
		server: server{address: address, Way: Local, folder: folder, command: at.command(settings)}, site: at,
	}, nil
}

// command returns the command that starts the server with these settings.
func (s *site) command(settings []string) func() *exec.Cmd {
	return func() *exec.Cmd {
		args := []string{"-D", s.data, "-p", strconv.Itoa(s.port)}
		for _, setting := range postgresSettings(settings) {
			args = append(args, "-c", setting)
		}
		return postgresCommand(context.Background(), s.who, s.data, filepath.Join(s.bin, "postgres"), args...)
	}
}

func initPostgres(ctx context.Context, bin string, who account, folder string) error {
	password := filepath.Join(folder, "password")
	if err := os.WriteFile(password, []byte(postgresPassword+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the password for initdb: %w", err)
	}
	if err := who.own(password); err != nil {
		return fmt.Errorf("write the password for initdb: %w", err)
	}
	data := filepath.Join(folder, "data")
	cmd := postgresCommand(ctx, who, data, filepath.Join(bin, "initdb"), "-D", data, "-U", postgresUser,
		"--pwfile="+password, "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync")
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, strings.TrimSpace(string(output)))
	}
	return nil
}

// postgresCommand removes PG… variables from the environment: they would change what the programs do.
func postgresCommand(ctx context.Context, who account, dir, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "HOME=" + dir, "TMPDIR=" + os.TempDir()}
	who.assume(cmd)
	return cmd
}

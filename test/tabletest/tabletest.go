// Package tabletest gives tests a database with the tables of an outbox.
package tabletest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// Tables are the tables in a database of the test. A failing statement ends the test.
type Tables struct {
	testing.TB
	URL string
	// Conn is an application's connection.
	Conn *pgx.Conn
}

// Name is the name of the outbox.
func Name() outbox.Table { return outbox.Table{Schema: "public", Name: "outbox"} }

// New creates a database with these options of CREATE DATABASE, and the tables.
func New(t testing.TB, options ...string) *Tables {
	t.Helper()
	if len(options) > 0 {
		url := services.Database(t, options...)
		services.Must(t, migrate(t.Context(), url))
		return &Tables{TB: t, URL: url, Conn: Connect(t, url)}
	}
	url := Database(t)
	return &Tables{TB: t, URL: url, Conn: Connect(t, url)}
}

// Database creates a database with the tables, and returns its URL.
func Database(t testing.TB) string {
	t.Helper()
	return services.Database(t, services.Template(t, "outbox", migrate))
}

func migrate(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	_, _, err = migrations.Up(ctx, conn, Name())
	return errors.Join(err, conn.Close(ctx))
}

// Connect opens a connection for the test.
func Connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	services.Must(t, err)
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// Begin starts a transaction and runs a statement in it.
func Begin(t testing.TB, conn *pgx.Conn, sql string) pgx.Tx {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	services.Must(t, err)
	Run(t, tx, sql)
	return tx
}

// Run runs a statement on a connection, or in a transaction.
func Run(t testing.TB, on interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}, sql string, args ...any,
) {
	t.Helper()
	if _, err := on.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// End calls Commit or Rollback of a transaction.
func End(t testing.TB, end func(context.Context) error) {
	t.Helper()
	services.Must(t, end(t.Context()))
}

// Role creates a role that may log in, with these attributes, and returns its URL.
func (f *Tables) Role(attributes string) (name, address string) {
	f.Helper()
	name = services.Name(f)
	f.Exec(`CREATE ROLE ` + name + ` LOGIN PASSWORD 'secret' ` + attributes)
	f.Cleanup(func() {
		if _, err := f.Conn.Exec(context.Background(), `DROP OWNED BY `+name+`; DROP ROLE `+name); err != nil {
			f.Log(err)
		}
	})
	u, err := url.Parse(f.URL)
	services.Must(f, err)
	u.User = url.UserPassword(name, "secret")
	return name, u.String()
}

// Exec runs a statement.
func (f *Tables) Exec(sql string, args ...any) {
	f.Helper()
	Run(f, f.Conn, sql, args...)
}

// Scan reads the first row of a query.
func (f *Tables) Scan(into any, sql string, args ...any) {
	f.Helper()
	if err := f.Conn.QueryRow(f.Context(), sql, args...).Scan(into); err != nil {
		f.Fatalf("%s: %v", sql, err)
	}
}

// One returns a single value; f is a *Tables, or embeds one.
func One[T any](f interface {
	Helper()
	Scan(into any, sql string, args ...any)
}, sql string, args ...any,
) (value T) {
	f.Helper()
	f.Scan(&value, sql, args...)
	return value
}

// Insert adds a row ("(routing_key, payload) VALUES …") and returns its id.
func (f *Tables) Insert(columns string, args ...any) int64 {
	f.Helper()
	return One[int64](f, "INSERT INTO outbox "+columns+" RETURNING id", args...)
}

// Plain adds n rows without a key.
func (f *Tables) Plain(n int) {
	f.Helper()
	f.Exec(`INSERT INTO outbox (routing_key, payload) SELECT 'r', to_json(i) FROM generate_series(1, $1::int) i`, n)
}

// IDs returns the ids of the rows that match a condition, in order.
func (f *Tables) IDs(where string) []int64 {
	f.Helper()
	return One[[]int64](f, "SELECT coalesce(array_agg(id ORDER BY id), '{}') FROM outbox WHERE "+where)
}

// DeadLetter adds a dead letter of a day ago; more are further columns and their values in SQL, in pairs.
func (f *Tables) DeadLetter(id int64, reason string, more ...string) {
	f.Helper()
	columns, values := "", ""
	for i := 0; i < len(more); i += 2 {
		columns, values = columns+", "+more[i], values+", "+more[i+1]
	}
	f.Exec(`INSERT INTO outbox_dead_letter 
		(id, created_at, message_id, attempts, schema_version, routing_key, payload, failure_reason`+columns+`)
		VALUES ($1, now() - interval '1 day', gen_random_uuid(), 6, 1, 'r', '{"n":1}', $2`+values+`)`, id, reason)
}

// Rows is how many dead rows Fill leaves, and usually how many live ones.
const Rows = 50_000

// Fill adds dead letters, dead rows and this many live rows: of ten rows, two have a key and one has a time.
func (f *Tables) Fill(live int) {
	f.Helper()
	const insert = `INSERT INTO outbox (routing_key, payload, coalesce_key, ordering_key, available_at)
		SELECT 'orders.created', to_json(repeat('x', 100)),
		       CASE WHEN i %% 2 = 0 THEN 'c ' || i %% 14 END,
		       CASE WHEN i %% 5 = 0 THEN 'key ' || i %% 1000 END,
		       CASE WHEN i %% 10 = 1 THEN now() + (i - 1000) * interval '1 second' END
		FROM generate_series(1, %d) i`
	f.Exec(fmt.Sprintf(insert, Rows))
	f.Exec(`DELETE FROM outbox`)
	if live > 0 {
		f.Exec(fmt.Sprintf(insert, live))
	}
	f.Exec(`INSERT INTO outbox_dead_letter 
		(id, created_at, message_id, attempts, schema_version, routing_key, ordering_key, failure_reason, payload)
		SELECT i, now(), gen_random_uuid(), 5, 1, 'r', 'dead ' || i, 'nack', '1' FROM generate_series(1, 10000) i`)
}

// Lines returns the only column of a query, such as a plan.
func (f *Tables) Lines(sql string, args ...any) string {
	f.Helper()
	rows, err := f.Conn.Query(f.Context(), sql, args...)
	services.Must(f, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		f.Fatalf("%s: %v", sql, err)
	}
	return strings.Join(lines, "\n")
}

// Psql runs a script with psql. A warning fails the test.
func Psql(t testing.TB, url, script string, flags ...string) {
	t.Helper()
	program, err := exec.LookPath("psql")
	services.Must(t, err)
	var warnings strings.Builder
	cmd := exec.CommandContext(t.Context(), program, append(flags, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", url)...)
	cmd.Env = append(os.Environ(), "PGOPTIONS=-c client_min_messages=warning")
	cmd.Stdin, cmd.Stderr = strings.NewReader(script), &warnings
	if err := cmd.Run(); err != nil || warnings.Len() > 0 {
		t.Fatalf("psql: %v\n%s", err, &warnings)
	}
}

// AddColumns adds columns of an application to both tables, with the names of computed columns.
func (f *Tables) AddColumns() {
	f.Helper()
	for name := range strings.FieldsSeq(`
		written_by key_order row_size nth bytes_before may_leave head place share rows each lease delay detail reason
		refused key after taken moved state number count total waits due ready named why since how ids keys heads locked
		picked sized behind back kept changed deleted numbered placed n h f b r s d e o k l c q t w x`) {
		for _, table := range []string{"outbox", "outbox_dead_letter"} {
			f.Exec(`ALTER TABLE ` + table + ` ADD COLUMN "` + name + `" text`)
		}
	}
}

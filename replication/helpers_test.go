package replication

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

func TestMain(m *testing.M) { services.Main(m) }

// fixture is a database with a table, and an ordinary connection.
type fixture struct {
	*testing.T
	url   string
	conn  *pgx.Conn
	names Names
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return onDatabase(t, services.Database(t))
}

func onDatabase(t *testing.T, url string) *fixture {
	t.Helper()
	name := services.Name(t)
	f := &fixture{T: t, url: url, names: Names{
		Table: outbox.Table{Schema: "public", Name: "outbox"}, Publication: name, Slot: name,
	}}
	f.conn = f.connect()
	f.exec(`CREATE TABLE outbox (id bigint PRIMARY KEY)`)
	f.exec(`CREATE TABLE other (id bigint)`)
	return f
}

func (f *fixture) connect() *pgx.Conn {
	f.Helper()
	conn, err := pgx.Connect(f.Context(), f.url)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func (f *fixture) exec(sql string) {
	f.Helper()
	if _, err := f.conn.Exec(f.Context(), sql); err != nil {
		f.Fatalf("%s: %v", sql, err)
	}
}

func (f *fixture) value(sql string) string {
	f.Helper()
	rows, err := query(f.Context(), f.conn.PgConn(), sql)
	if err != nil {
		f.Fatalf("%s: %v", sql, err)
	}
	if len(rows) == 0 {
		return ""
	}
	return rows[0][0]
}

func (f *fixture) slot(column string) string {
	f.Helper()
	return f.value(`SELECT ` + column + ` FROM pg_replication_slots WHERE slot_name = '` + f.names.Slot + `'`)
}

// await waits until a query returns true.
func (f *fixture) await(sql string) {
	f.Helper()
	await.Until(f, sql, func() bool {
		rows, err := query(f.Context(), f.conn.PgConn(), "SELECT pg_stat_clear_snapshot(); "+sql)
		if err != nil {
			f.Fatalf("waiting for %s: %v", sql, err)
		}
		return rows[len(rows)-1][0] == "t"
	})
}

func (f *fixture) setup() ([]string, error) {
	f.Helper()
	done, err := Setup(f.Context(), f.conn.PgConn(), f.names, await.Hang())
	return texts(done), err
}

func texts(done []Change) (lines []string) {
	for _, change := range done {
		lines = append(lines, change.String())
	}
	return lines
}

func (f *fixture) mustSetup() []string {
	f.Helper()
	done, err := f.setup()
	if err != nil {
		f.Fatal(err)
	}
	return done
}

func (f *fixture) wantProblem(err error, what, fix string) {
	f.Helper()
	var p *problem.Problem
	if !errors.As(err, &p) {
		f.Fatalf("err = %v, want a problem", err)
	}
	if !strings.Contains(p.Error(), what) || !strings.Contains(p.Hint(), fix) {
		f.Errorf("%s\nhint %s\nwant %s\nhint %s", p, p.Hint(), what, fix)
	}
}

func (f *fixture) wantLines(got, want []string) {
	f.Helper()
	if !slices.Equal(got, want) {
		f.Errorf("did %q, want %q", got, want)
	}
}

// role creates a role that may log in, and returns its URL.
func (f *fixture) role(attributes string) (name, address string) {
	f.Helper()
	name = services.Name(f)
	f.exec(`CREATE ROLE ` + name + ` LOGIN PASSWORD 'secret' ` + attributes)
	f.Cleanup(func() {
		for _, statement := range []string{`DROP OWNED BY ` + name, `DROP ROLE ` + name} {
			if _, err := f.conn.Exec(context.Background(), statement); err != nil {
				f.Logf("%s: %v", statement, err)
			}
		}
	})
	u, err := url.Parse(f.url)
	if err != nil {
		f.Fatal(err)
	}
	u.User = url.UserPassword(name, "secret")
	return name, u.String()
}

// listener is a handler that keeps what the stream brings.
type listener struct {
	*Stream
	messages  chan string // first bytes: B, R, I, C, …
	positions chan pglogrepl.LSN
	start     pglogrepl.LSN
	done      chan error
	stop      context.CancelFunc
}

func (l *listener) WAL(data []byte) (pglogrepl.LSN, error) {
	message, err := pglogrepl.Parse(data)
	if err != nil {
		return 0, err
	}
	switch m := message.(type) {
	case *pglogrepl.InsertMessage:
		l.messages <- string(m.Tuple.Columns[0].Data)
	case *pglogrepl.CommitMessage:
		return m.TransactionEndLSN, nil
	}
	return 0, nil
}

func (l *listener) Passed(position pglogrepl.LSN) {
	select {
	case l.positions <- position:
	default: // the buffer is full; the test reads fewer
	}
}

func (l *listener) Alive(_, _ time.Time) {}
func (l *listener) Idle()                {}

func (f *fixture) open() (*Stream, []string) {
	f.Helper()
	stream, done, err := Open(f.Context(), pgdial.AddressOf(f.url, ""), f.names, await.Hang())
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(stream.Close)
	return stream, texts(done)
}

// listen streams until the test ends.
func (f *fixture) listen() *listener {
	f.Helper()
	stream, _ := f.open()
	return f.run(stream)
}

func (f *fixture) run(stream *Stream) *listener {
	f.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &listener{
		Stream: stream, messages: make(chan string, 1000), positions: make(chan pglogrepl.LSN, 1000), done: make(chan error, 1), stop: cancel,
	}
	var err error
	if l.start, err = stream.Start(f.Context()); err != nil {
		f.Fatal(err)
	}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		l.done <- stream.Run(ctx, l)
	}()
	f.Cleanup(func() {
		cancel()
		<-finished
	})
	return l
}

// wantInserted waits for the rows, in binary form.
func (f *fixture) wantInserted(l *listener, ids ...string) {
	f.Helper()
	hang := time.After(await.Hang())
	for _, id := range ids {
		select {
		case got := <-l.messages:
			if want := "\x00\x00\x00\x00\x00\x00\x00" + id; got != want {
				f.Fatalf("row %q, want %q", got, want)
			}
		case err := <-l.done:
			f.Fatalf("the stream ended: %v", err)
		case <-hang:
			f.Fatalf("row %q did not arrive", id)
		}
	}
}

func (f *fixture) wantEnd(l *listener) error {
	f.Helper()
	return await.Receive(f, "the stream ends", l.done)
}

func asPgConn(f *fixture, url string) *pgconn.PgConn {
	f.Helper()
	conn, err := pgconn.Connect(f.Context(), url)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

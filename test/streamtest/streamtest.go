// Package streamtest gives tests a database with a table to stream, and a handler that keeps what the stream brings.
package streamtest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/replication"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// Fixture is a database with a table, and an ordinary connection.
type Fixture struct {
	*tabletest.Tables
	// Source has an unused name for publication and slot.
	Source replication.Source
}

// New creates a database.
func New(t *testing.T) *Fixture {
	t.Helper()
	return On(t, services.Database(t))
}

// On creates the tables in a database.
func On(t *testing.T, url string) *Fixture {
	t.Helper()
	name := services.Name(t)
	tables := &tabletest.Tables{TB: t, URL: url, Conn: tabletest.Connect(t, url)}
	f := &Fixture{tables, replication.Source{Table: tabletest.Name(), Publication: name, Slot: name}}
	f.Exec(`CREATE TABLE outbox (id bigint PRIMARY KEY)`)
	f.Exec(`CREATE TABLE other (id bigint)`)
	return f
}

// Setup creates publication and slot.
func (f *Fixture) Setup() {
	f.Helper()
	f.Exec(`CREATE PUBLICATION ` + f.Source.Publication + ` FOR TABLE outbox WITH (publish = 'insert')`)
	f.Exec(slot.CreateSQL(f.Source.Slot, slot.Options{}))
}

// Value returns the first value of a query; "": it has no rows.
func (f *Fixture) Value(sql string) string {
	f.Helper()
	rows, err := slot.Query(f.Context(), f.Conn.PgConn(), sql)
	if err != nil {
		f.Fatalf("%s: %v", sql, err)
	}
	if len(rows) == 0 {
		return ""
	}
	return rows[0][0]
}

// Slot returns an expression of the slot.
func (f *Fixture) Slot(column string) string {
	f.Helper()
	return f.Value(`SELECT ` + column + ` FROM pg_replication_slots WHERE slot_name = '` + f.Source.Slot + `'`)
}

// Await waits until a query returns true.
func (f *Fixture) Await(sql string) {
	f.Helper()
	await.Until(f, sql, func() bool {
		rows, err := slot.Query(f.Context(), f.Conn.PgConn(), "SELECT pg_stat_clear_snapshot(); "+sql)
		if err != nil {
			f.Fatalf("waiting for %s: %v", sql, err)
		}
		return rows[len(rows)-1][0] == "t"
	})
}

// Listener is a handler that keeps what the stream brings.
type Listener struct {
	*replication.Stream
	Messages  chan string // the id of each row
	Positions chan pglogrepl.LSN
	At        pglogrepl.LSN // the position of the start
	Done      chan error
	Stop      context.CancelFunc
}

// WAL implements replication.Handler.
func (l *Listener) WAL(data []byte) (pglogrepl.LSN, error) {
	message, err := pglogrepl.Parse(data)
	if err != nil {
		return 0, err
	}
	switch m := message.(type) {
	case *pglogrepl.InsertMessage:
		l.Messages <- string(m.Tuple.Columns[0].Data)
	case *pglogrepl.CommitMessage:
		return m.TransactionEndLSN, nil
	}
	return 0, nil
}

// Passed implements replication.Handler.
func (l *Listener) Passed(position pglogrepl.LSN) {
	select {
	case l.Positions <- position:
	default: // the buffer is full; the test reads fewer
	}
}

// Alive implements replication.Handler.
func (l *Listener) Alive(_, _ time.Time) {}

// Idle implements replication.Handler.
func (l *Listener) Idle() {}

// Stream connects to the server at the URL.
func (f *Fixture) Stream() *replication.Stream {
	f.Helper()
	stream, err := replication.Connect(f.Context(), pgdial.AddressOf(f.URL, ""), f.Source)
	services.Must(f, err)
	f.Cleanup(stream.Close)
	return stream
}

// Listen streams until the test ends.
func (f *Fixture) Listen() *Listener {
	f.Helper()
	return f.Run(f.Stream())
}

// Run streams until the test ends.
func (f *Fixture) Run(stream *replication.Stream) *Listener {
	f.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &Listener{
		Stream: stream, Stop: cancel,
		Messages: make(chan string, 1000), Positions: make(chan pglogrepl.LSN, 1000), Done: make(chan error, 1),
	}
	var err error
	if l.At, err = stream.Start(f.Context()); err != nil {
		f.Fatal(err)
	}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		l.Done <- stream.Run(ctx, l)
	}()
	f.Cleanup(func() {
		cancel()
		<-finished
	})
	return l
}

// WantInserted waits for the rows, in binary form.
func (f *Fixture) WantInserted(l *Listener, ids ...string) {
	f.Helper()
	hang := time.After(await.Hang())
	for _, id := range ids {
		select {
		case got := <-l.Messages:
			if want := "\x00\x00\x00\x00\x00\x00\x00" + id; got != want {
				f.Fatalf("row %q, want %q", got, want)
			}
		case err := <-l.Done:
			f.Fatalf("the stream ended: %v", err)
		case <-hang:
			f.Fatalf("row %q did not arrive", id)
		}
	}
}

// WantEnd waits for the end of the stream.
func (f *Fixture) WantEnd(l *Listener) error {
	f.Helper()
	return await.Receive(f, "the stream ends", l.Done)
}

// Open opens a connection of its own.
func (f *Fixture) Open(url string) *pgconn.PgConn {
	f.Helper()
	conn, err := pgconn.Connect(f.Context(), url)
	services.Must(f, err)
	f.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// tap forwards connections to a server, and counts what a client sends.
type tap struct {
	address string

	sent atomic.Int64 // bytes
	// For RabbitMQ: AMQP frames.
	frames atomic.Int64
	// For Postgres: statements and their round trips on ordinary connections.
	statements, roundTrips atomic.Int64
}

// protocol returns what parses the bytes that a client sends on one connection.
type protocol func(*tap) io.Writer

// newTap starts a tap, which ends with the test.
func newTap(t *testing.T, target string, parser protocol) *tap {
	t.Helper()
	p := &tap{}
	p.address = services.Between(t, target, func(client, server net.Conn) {
		_, _ = io.Copy(server, io.TeeReader(client, io.MultiWriter(counter{&p.sent}, parser(p))))
	}, services.Answers)
	return p
}

type counter struct{ bytes *atomic.Int64 }

func (c counter) Write(b []byte) (int, error) {
	c.bytes.Add(int64(len(b)))
	return len(b), nil
}

// framing parses the frames of AMQP: seven bytes with the size, so many bytes, and one more.
type framing struct {
	tap    *tap
	unread []byte
	skip   int // bytes before the next frame
}

func toRabbitMQ(p *tap) io.Writer {
	const greeting = 8 // AMQP and the version
	return &framing{tap: p, skip: greeting}
}

func (f *framing) Write(b []byte) (int, error) {
	f.unread = append(f.unread, b...)
	for {
		skipped := min(f.skip, len(f.unread))
		f.skip -= skipped
		f.unread = f.unread[skipped:]
		if f.skip > 0 || len(f.unread) < 7 {
			return len(b), nil
		}
		f.tap.frames.Add(1)
		f.skip = 7 + int(binary.BigEndian.Uint32(f.unread[3:])) + 1
	}
}

func toPostgres(p *tap) io.Writer { return &frontend{tap: p} }

// frontend parses what a client of Postgres sends on one connection.
type frontend struct {
	tap         *tap
	unread      []byte
	started     bool
	replication bool
}

var errProtocol = errors.New("this is not the protocol of Postgres")

func (f *frontend) Write(b []byte) (int, error) {
	f.unread = append(f.unread, b...)
	for {
		kind := 1 // the bytes before the length
		if !f.started {
			kind = 0
		}
		if len(f.unread) < kind+4 {
			return len(b), nil
		}
		size := int(binary.BigEndian.Uint32(f.unread[kind:]))
		if size < 4 {
			return 0, errProtocol
		}
		if len(f.unread) < kind+size {
			return len(b), nil
		}
		f.message(f.unread[:kind+size])
		f.unread = f.unread[kind+size:]
	}
}

func (f *frontend) message(m []byte) {
	if !f.started {
		f.started = true
		f.replication = bytes.Contains(m, []byte("\x00replication\x00"))
		return
	}
	switch {
	case f.replication:
	case m[0] == 'Q': // a simple query
		f.tap.statements.Add(1)
		f.tap.roundTrips.Add(1)
	case m[0] == 'E': // Execute
		f.tap.statements.Add(1)
	case m[0] == 'S': // Sync
		f.tap.roundTrips.Add(1)
	}
}

// countedPostgres starts a server whose WAL depends only on what its sessions write: no checkpoint adds images of
// pages, and no vacuum runs.
func countedPostgres(t *testing.T) *services.Postgres {
	t.Helper()
	return services.PrivatePostgres(t,
		"full_page_writes=off", "autovacuum=off", "checkpoint_timeout=1h", "max_wal_size=4GB")
}

// walReader reads which WAL was written. It is nil if the server has no pg_walinspect.
type walReader struct {
	conn *pgx.Conn
	from string // the position of the last mark
}

// wal is what was written between two marks: records, their bytes, and how many records are updates of rows.
type wal struct{ records, bytes, updates int64 }

// withoutLate leaves out what a drain writes for messages without an answer in time. Their number depends on the speed
// of the machine. Each such row is locked once more and updated, which adds an entry to two indexes.
func (w wal) withoutLate() wal {
	const records, bytes = 4, 650
	return wal{w.records - records*w.updates, w.bytes - bytes*w.updates, w.updates}
}

func newWALReader(t *testing.T, server *services.Postgres, database string) *walReader {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), database)
	services.Must(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	var available bool
	err = conn.QueryRow(t.Context(),
		"SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pg_walinspect')").Scan(&available)
	services.Must(t, err)
	if !available {
		t.Log("the server has no pg_walinspect: its WAL is not counted")
		return nil
	}
	if _, err := conn.Exec(t.Context(), "CREATE EXTENSION pg_walinspect"); err != nil {
		t.Fatal(err)
	}
	return &walReader{conn: conn}
}

// mark sets the start of what since returns.
func (r *walReader) mark(t *testing.T) {
	t.Helper()
	if r != nil {
		r.from = r.flushed(t)
	}
}

// flushed flushes all WAL so far, by a commit, and returns its end.
func (r *walReader) flushed(t *testing.T) (end string) {
	t.Helper()
	if _, err := r.conn.Exec(t.Context(), "SELECT pg_logical_emit_message(true, 'mark', '')"); err != nil {
		t.Fatal(err)
	}
	services.Must(t, r.conn.QueryRow(t.Context(), "SELECT pg_current_wal_flush_lsn()::text").Scan(&end))
	return end
}

// since returns what was written since the mark. It leaves out what is written at times (running transactions, a
// checkpoint), and what a scan writes when it finds rows that are dead by then (pruning).
func (r *walReader) since(t *testing.T) (w wal) {
	t.Helper()
	if r == nil {
		return w
	}
	const sum = `
SELECT coalesce(sum(count), 0)::bigint, coalesce(sum(combined_size), 0)::bigint,
       coalesce(sum(count) FILTER (WHERE "resource_manager/record_type" ~ '^Heap/(HOT_)?UPDATE'), 0)::bigint
FROM pg_get_wal_stats($1::text::pg_lsn, $2::text::pg_lsn, true)
WHERE "resource_manager/record_type" !~ '^(Standby|XLOG)/' AND "resource_manager/record_type" !~ 'PRUNE'`
	row := r.conn.QueryRow(t.Context(), sum, r.from, r.flushed(t))
	services.Must(t, row.Scan(&w.records, &w.bytes, &w.updates))
	return w
}

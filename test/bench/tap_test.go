package bench

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// tap forwards connections to a server, and counts what a client sends.
type tap struct {
	listener net.Listener
	target   string
	running  sync.WaitGroup

	sent atomic.Int64 // bytes
	// For RabbitMQ: AMQP frames.
	frames atomic.Int64
	// For Postgres: statements and their round trips on ordinary connections, and status updates on replication
	// connections.
	statements, roundTrips, statusUpdates atomic.Int64
}

// protocol returns what parses the bytes that a client sends on one connection.
type protocol func(*tap) io.Writer

// newTap starts a tap, which ends with the test.
func newTap(t *testing.T, target string, parser protocol) *tap {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &tap{listener: listener, target: target}
	p.running.Go(func() { p.accept(t, parser) })
	t.Cleanup(func() {
		_ = listener.Close()
		p.running.Wait()
	})
	return p
}

func (p *tap) addr() string { return p.listener.Addr().String() }

func (p *tap) accept(t *testing.T, parser protocol) {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		server, err := (&net.Dialer{}).Dial("tcp", p.target)
		if err != nil {
			t.Error(err)
			_ = client.Close()
			return
		}
		counting := io.MultiWriter(counter{&p.sent}, parser(p))
		p.running.Go(func() { pipe(server, io.TeeReader(client, counting)) })
		p.running.Go(func() { pipe(client, server) })
	}
}

// pipe ends when either side ends, and then ends the other.
func pipe(to net.Conn, from io.Reader) {
	_, _ = io.Copy(to, from)
	_ = to.Close()
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
		if m[0] == 'd' { // CopyData
			f.tap.statusUpdates.Add(1)
		}
	case m[0] == 'Q': // a simple query
		f.tap.statements.Add(1)
		f.tap.roundTrips.Add(1)
	case m[0] == 'E': // Execute
		f.tap.statements.Add(1)
	case m[0] == 'S': // Sync
		f.tap.roundTrips.Add(1)
	}
}

package services

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

func echo(t *testing.T) string {
	t.Helper()
	return Serve(t, func(client net.Conn) { _, _ = io.Copy(client, client) })
}

func dial(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func exchange(t *testing.T, conn net.Conn, word string) {
	t.Helper()
	if _, err := io.WriteString(conn, word); err != nil {
		t.Fatal(err)
	}
	expect(t, conn, word)
}

func expect(t *testing.T, conn net.Conn, word string) {
	t.Helper()
	answer := make([]byte, len(word))
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != word {
		t.Fatalf("read %q, %v: expected %q", answer, err, word)
	}
}

// silent checks that nothing arrives for a short time.
func silent(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read %d bytes, %v: expected silence", n, err)
	}
	_ = conn.SetReadDeadline(time.Time{})
}

// byFirstWord is a sorter that needs more bytes if the first is "?".
func byFirstWord(sent []byte) (string, bool) { return string(sent), string(sent) != "?" }

func TestProxyCanBreakOneKindOfConnection(t *testing.T) {
	t.Parallel()
	p, err := StartProxy(echo(t), byFirstWord)
	Must(t, err)
	t.Cleanup(p.Close)
	sick, well := dial(t, p), dial(t, p)
	exchange(t, sick, "?")
	exchange(t, sick, "sick")
	exchange(t, well, "well")

	p.Only("sick").BlackHole(Downstream)
	exchange(t, well, "goes on")
	if _, err := io.WriteString(sick, "held back"); err != nil {
		t.Fatal(err)
	}
	silent(t, sick)
	p.Only("sick").Resume()
	expect(t, sick, "held back")

	p.Only("sick").Refuse()
	p.Only("sick").Cut()
	if n := p.Connections(); n != 1 {
		t.Fatalf("%d connections after Cut, want that of the other kind", n)
	}
	if _, err := sick.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("a connection that was cut reads %v: expected a reset", err)
	}
	exchange(t, well, "goes on")
	again := dial(t, p)
	if _, err := io.WriteString(again, "sick"); err == nil {
		if _, err = again.Read(make([]byte, 1)); err == nil {
			t.Error("a connection of the rejected kind was served")
		}
	}
	exchange(t, dial(t, p), "well")
	p.Only("sick").Accept()
	exchange(t, dial(t, p), "sick")
}

func TestPostgresConnectionsAreClassified(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		sent, kind string
		known      bool
	}{
		{"\x00\x00\x00\x08\x04\xd2\x16\x2f", "", false}, // SSLRequest
		{"\x00\x00\x00\x29\x00\x03\x00\x00user\x00me\x00replication\x00database\x00\x00", Replication, true},
		{"\x00\x00\x00\x29\x00\x03\x00\x00replication\x00database\x00user\x00me\x00\x00", Replication, true},
		{"\x00\x00\x00\x13\x00\x03\x00\x00user\x00replication\x00\x00", Ordinary, true},
		{"\x16\x03\x01\x02", Ordinary, true}, // TLS
	} {
		if kind, known := PostgresKinds([]byte(c.sent)); kind != c.kind || known != c.known {
			t.Errorf("%q: %q, %t", c.sent, kind, known)
		}
	}
}

// Delayed bytes arrive in order, and so does the end of the connection: nothing in flight is lost.
func TestADelayingProxyLosesNothing(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	Must(t, err)
	defer listener.Close()
	p := NewProxy(t, listener.Addr().String())
	conn := dial(t, p)
	server, err := listener.Accept()
	Must(t, err)
	const late = 300 * time.Millisecond
	p.Delay(late, Downstream)
	sent := time.Now()
	for _, word := range []string{"one", "two"} {
		if _, err := io.WriteString(server, word); err != nil {
			t.Fatal(err)
		}
	}
	_ = server.Close()
	if _, err := io.WriteString(conn, "nobody reads this"); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if took := time.Since(sent); string(got) != "onetwo" || err != nil || took < late {
		t.Errorf("after %s: %q, %v", took, got, err)
	}
}

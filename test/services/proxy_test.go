package services

import (
	"io"
	"net"
	"testing"
	"time"
)

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
	conn, err := net.Dial("tcp", p.Addr())
	Must(t, err)
	defer conn.Close()
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

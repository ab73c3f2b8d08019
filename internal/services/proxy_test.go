package services

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"
)

// echo is a server that returns what it is sent.
func echo(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			done.Go(func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		done.Wait()
	})
	return listener.Addr().String()
}

func dial(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
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

// silent says that nothing arrives for as long as one cares to wait.
func silent(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read %d bytes, %v: expected silence", n, err)
	}
	_ = conn.SetReadDeadline(time.Time{})
}

func TestProxyCutsAndRefuses(t *testing.T) {
	t.Parallel()
	p := NewProxy(t, echo(t))
	first := dial(t, p)
	exchange(t, first, "before")
	p.AwaitConnections(1)

	p.Refuse()
	exchange(t, first, "open connections stay")
	if refused, err := net.Dial("tcp", p.Addr()); err == nil { // the reset may come during or after the handshake
		if _, err := refused.Read(make([]byte, 1)); err == nil {
			t.Error("a new connection was served")
		}
		_ = refused.Close()
	}

	p.Cut()
	if _, err := first.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("a cut connection reads %v: expected a reset", err)
	}
	if n := p.Connections(); n != 0 {
		t.Errorf("%d connections after Cut", n)
	}

	p.Accept()
	exchange(t, dial(t, p), "again")
}

func TestProxyHoldsEachDirectionAndLosesNothing(t *testing.T) {
	t.Parallel()
	for name, directions := range map[string][]Direction{
		"upstream": {Upstream}, "downstream": {Downstream}, "both": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := NewProxy(t, echo(t))
			conn := dial(t, p)
			exchange(t, conn, "before")
			p.BlackHole(directions...)
			if _, err := io.WriteString(conn, "held back"); err != nil {
				t.Fatal(err)
			}
			silent(t, conn)
			p.Resume(directions...)
			expect(t, conn, "held back")
		})
	}
}

func TestProxyEndsWithBothSides(t *testing.T) {
	t.Parallel()
	p := NewProxy(t, echo(t))
	conn := dial(t, p)
	exchange(t, conn, "before")
	p.BlackHole()
	if _, err := io.WriteString(conn, "never read"); err != nil {
		t.Fatal(err)
	}
	p.Close() // returns only when its goroutines are gone, also those that hold bytes back
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the connection outlived the proxy")
	}
}

package rawnet

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"
)

func pair(t *testing.T) (wrapped, peer net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	dial := Dial((&net.Dialer{}).DialContext)
	if wrapped, err = dial(t.Context(), "tcp", listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if peer, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = wrapped.Close(), peer.Close() })
	return wrapped, peer
}

// Both directions are used at the same time, with more than the socket buffers can hold.
func TestBytesArriveUnchanged(t *testing.T) {
	wrapped, peer := pair(t)
	const size = 16 << 20
	random := rand.NewChaCha8([32]byte{})
	sent := make([]byte, size)
	_, _ = random.Read(sent)
	var running sync.WaitGroup
	for _, way := range []struct{ from, to net.Conn }{{wrapped, peer}, {peer, wrapped}} {
		running.Go(func() {
			if n, err := way.from.Write(sent); n != size || err != nil {
				t.Errorf("wrote %d, %v", n, err)
			}
		})
		running.Go(func() {
			received := make([]byte, size)
			if _, err := io.ReadFull(way.to, received); err != nil || !bytes.Equal(received, sent) {
				t.Errorf("other bytes arrived, %v", err)
			}
		})
	}
	running.Wait()
}

func wantRead(t *testing.T, conn net.Conn, into []byte, want int, wantErr error) {
	t.Helper()
	if n, err := conn.Read(into); n != want || err != wantErr {
		t.Errorf("read %d, %v, want %d, %v", n, err, want, wantErr)
	}
}

func TestReadReturnsEOFAtTheEnd(t *testing.T) {
	wrapped, peer := pair(t)
	_ = peer.Close()
	wantRead(t, wrapped, make([]byte, 10), 0, io.EOF)
	wantRead(t, wrapped, nil, 0, nil)
}

// They end a waiting read and a stuck write, and can be moved.
func TestDeadlinesEndReadsAndWrites(t *testing.T) {
	wrapped, peer := pair(t)
	const soon = 50 * time.Millisecond
	_ = wrapped.SetReadDeadline(time.Now().Add(soon))
	_, err := wrapped.Read(make([]byte, 10))
	isTimeout(t, "read", err)
	much := make([]byte, 64<<20)
	_ = wrapped.SetWriteDeadline(time.Now().Add(10 * soon))
	n, err := wrapped.Write(much)
	isTimeout(t, "write", err)
	if n == 0 || n == len(much) {
		t.Errorf("wrote %d", n)
	}
	_ = wrapped.SetDeadline(time.Time{})
	_, _ = peer.Write([]byte("x"))
	wantRead(t, wrapped, make([]byte, 10), 1, nil)
}

func isTimeout(t *testing.T, op string, err error) {
	t.Helper()
	var failed *net.OpError
	if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &failed) || failed.Op != op || !failed.Timeout() {
		t.Errorf("%s: got %v, want a timeout", op, err)
	}
}

func TestCloseEndsWaitingReadsAndWrites(t *testing.T) {
	wrapped, _ := pair(t)
	ended := make(chan error)
	for _, do := range []func([]byte) (int, error){wrapped.Read, wrapped.Write} {
		go func() {
			_, err := do(make([]byte, 64<<20))
			ended <- err
		}()
	}
	_ = wrapped.Close()
	for range 2 {
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v", err)
		}
	}
}

func TestAResetByThePeerIsAnError(t *testing.T) {
	wrapped, peer := pair(t)
	if _, err := wrapped.Write([]byte("unread")); err != nil {
		t.Fatal(err)
	}
	_ = peer.(*net.TCPConn).SetLinger(0)
	_ = peer.Close()
	var failed *net.OpError
	if _, err := wrapped.Read(make([]byte, 10)); !errors.As(err, &failed) || failed.Op != "read" || failed.Addr == nil {
		t.Errorf("got %v", err)
	}
}

func TestOnlyTCPConnectionsAreWrapped(t *testing.T) {
	one, other := net.Pipe()
	defer one.Close()
	defer other.Close()
	if Wrap(one) != one {
		t.Error("the connection was wrapped")
	}
	failed := errors.New("refused")
	if _, err := Dial(func(context.Context, string, string) (net.Conn, error) { return nil, failed })(t.Context(), "tcp", ""); err != failed {
		t.Errorf("got %v", err)
	}
}

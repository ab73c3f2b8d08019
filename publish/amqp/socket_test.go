package amqp

import (
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/await"
)

// corkedSocket is connected to peer and has collected a message that does not get old during a test.
func corkedSocket(t *testing.T) (s *socket, peer net.Conn) {
	t.Helper()
	ours, peer := net.Pipe()
	s = &socket{Conn: ours, writeTimeout: await.Hang()}
	t.Cleanup(func() { _, _ = s.Close(), peer.Close() })
	s.cork(time.Now().Add(time.Hour))
	if n, err := s.Write([]byte("message")); n != 7 || err != nil {
		t.Fatalf("collected %d, %v", n, err)
	}
	return s, peer
}

func TestACorkedSocketSendsWhenItIsUncorked(t *testing.T) {
	s, peer := corkedSocket(t)
	read := make(chan string)
	go func() {
		text := make([]byte, 100)
		n, _ := peer.Read(text)
		read <- string(text[:n])
	}()
	if err := s.uncork(); err != nil {
		t.Error(err)
	}
	if got := <-read; got != "message" {
		t.Errorf("got %q", got)
	}
}

// These messages have no mark, and another relay may have taken over.
func TestAFrozenProcessDoesNotSendItsBuffer(t *testing.T) {
	s, peer := corkedSocket(t)
	s.since = time.Now().Add(-outbox.CertainFor - outbox.WriteFor)
	if err := s.uncork(); !errors.Is(err, errStoodStill) {
		t.Errorf("got %v", err)
	}
	if _, err := s.Write([]byte("more")); !errors.Is(err, errStoodStill) {
		t.Errorf("then %v", err)
	}
	_ = s.Close()
	if n, err := peer.Read(make([]byte, 100)); n != 0 || err == nil {
		t.Errorf("%d bytes were sent, %v", n, err)
	}
}

// The broker blocks the connection during a large body. Messages collected after it are not late.
func TestAStalledLargeWriteDoesNotMakeTheNextOneStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, peer := net.Pipe()
		s := &socket{Conn: ours, writeTimeout: outbox.WriteFor}
		defer func() { _, _ = s.Close(), peer.Close() }()
		s.blocked.Store(true)
		s.cork(time.Now())
		time.AfterFunc(5*outbox.WriteFor, func() { _, _ = io.Copy(io.Discard, peer) })
		if n, err := s.Write(make([]byte, 2*coalesced)); n != 2*coalesced || err != nil {
			t.Fatalf("sent %d, %v", n, err)
		}
		if _, err := s.Write([]byte("small")); err != nil {
			t.Error(err)
		}
		if err := s.uncork(); err != nil {
			t.Error(err)
		}
	})
}

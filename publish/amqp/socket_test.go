package amqp

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
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

// throttled forwards connections to target. The first bytes of the client arrive slowly: piece bytes at each interval.
// The proxy takes so many pieces at once.
func throttled(t *testing.T, target string, first, piece int, every time.Duration, buffer int) (addr string) {
	t.Helper()
	return services.Between(t, target, func(client, server net.Conn) {
		_ = client.(*net.TCPConn).SetReadBuffer(piece)
		pieces := make(chan []byte, buffer)
		go func() {
			defer close(pieces)
			for {
				some := make([]byte, piece)
				n, err := client.Read(some)
				if err != nil {
					return
				}
				pieces <- some[:n]
			}
		}()
		for some := range pieces {
			_, _ = server.Write(some)
			if first -= len(some); first > 0 {
				<-time.After(every * time.Duration(len(some)) / time.Duration(piece))
			}
		}
	}, services.Answers)
}

// Each write has its own timeout. Buffers on the way may take the whole message at once: then the wait for its confirm
// is longer. Nothing else times out meanwhile.
func TestAnUploadMayTakeLongerThanTheSendTimeout(t *testing.T) {
	t.Parallel()
	for name, buffer := range map[string]int{"small buffers": 0, "large buffers": 4096} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := services.SharedRabbitMQ(t)
			u := broker.VHost(t)
			a := newAdmin(t, u)
			q, x := a.queue(services.Name(t), nil), services.Name(t)+"_x"
			a.exchange(x, "fanout", q, "")
			const size = 12 << 20
			timeout := await.Scaled(2 * time.Second)
			slow := throttled(t, broker.Addr(), size*3/4, 64<<10, timeout/64, buffer) // 9 MB take more than twice the timeout
			r := startAMQP(t, Config{URL: withHost(t, u, slow), SendTimeout: timeout})
			mark := r.Mark()
			var k publishtest.Maker
			messages := append(k.Many(20, "", q), k.Many(20, x, q)...)
			large := messages[9]
			large.Payload, large.Binary = make([]byte, size), true
			began := time.Now()
			publishtest.AllAre(t, r.Answers(t, messages...), outbox.Confirmed)
			if took := time.Since(began); took < 3*timeout/2 || r.Mark() != mark {
				t.Errorf("took %v; the connection was lost: %v", took, r.Mark() != mark)
			}
		})
	}
}

// An answer shows that everything before it has arrived. Until then, the size of a message gives it time. If the broker
// answers nothing, the connection is lost, and the log names the row that may be the cause.
func TestTheWaitForAConfirmIsBoundedByProgress(t *testing.T) {
	const timeout = 10 * time.Second
	s := &session{
		Publisher: &Publisher{}, clock: newClock(), progress: progress{sendTimeout: timeout},
	}
	s.clock.start = s.clock.start.Add(-time.Hour)
	now := s.clock.now()
	payload := make([]byte, 20*slowest)
	add := func(age time.Duration) *entry {
		e := &entry{message: &outbox.Message{Row: outbox.Row{ID: 42, Payload: payload}}, lane: &lane{}}
		e.began, e.wait.since, e.published = now-age, now-age, true
		s.pending = append(s.pending, e)
		return e
	}
	e := add(timeout + 19*time.Second)
	e.published = false
	if s.expire(); s.failure != nil {
		t.Error("the connection was lost during an upload")
	}
	e.published = true
	if s.expire(); s.failure != nil {
		t.Error("the connection was lost although the message may be on its way")
	}
	s.note(now-time.Minute, now-time.Second)
	if s.late(&wait{since: now - time.Hour}, now) {
		t.Error("the broker has just answered an earlier message")
	}
	s.note(now-time.Second, now)
	later := wait{since: now - 2*time.Second}
	if s.late(&later, now) || !later.arrived || !s.late(&later, now+timeout) {
		t.Errorf("the broker has the message, and gets the send timeout: %+v", later)
	}
	s.lastAnswer, s.reached = 0, 0
	add(timeout + 21*time.Second)
	s.expire()
	if s.failure == nil || !strings.Contains(s.failure.Error(), "row 42 with 1310720 bytes") {
		t.Error("the connection to a silent broker was not lost, or no row is named")
	}
}

// While the broker blocks the connection, no time passes. Afterwards the remaining time applies. A call that has
// returned ends nothing.
func TestACallIsBoundedAfterABlockedConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 10 * time.Second
		s := &session{
			clock: newClock(), progress: progress{sendTimeout: timeout}, ended: make(chan struct{}),
			events: publish.NewMailbox[happened](), throttle: newThrottle(newSendWindow(1, 1)),
		}
		hangs := make(chan struct{})
		s.do("look up queue", func() error { return nil }, func(error) {})
		synctest.Wait()
		s.learn()
		s.do("open channel", func() error {
			<-hangs
			return nil
		}, func(error) {})
		pass := func(d time.Duration) error {
			time.Sleep(d)
			s.tick()
			return s.failure
		}
		if err := pass(timeout / 2); err != nil {
			t.Error(err)
		}
		s.clock.stop()
		if err := pass(10 * timeout); err != nil {
			t.Errorf("while the connection is blocked: %v", err)
		}
		s.clock.resume()
		if err := pass(timeout/2 - time.Millisecond); err != nil {
			t.Error(err)
		}
		if err := pass(time.Millisecond); err == nil || err.Error() != "open channel: no answer within 10s" {
			t.Errorf("the call has no time limit: %v", err)
		}
		close(hangs)
		s.helpers.Wait()
	})
}

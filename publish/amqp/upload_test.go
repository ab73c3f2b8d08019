package amqp

import (
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

package amqp

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// throttled forwards connections to target, and takes the first bytes of the client slowly: piece bytes at each
// interval.
func throttled(t *testing.T, target string, first, piece int64, every time.Duration) (addr string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(all.Wait)
	t.Cleanup(func() { _ = listener.Close() })
	forward := func(client, server *net.TCPConn) {
		defer func() { _, _ = client.Close(), server.Close() }()
		_ = client.SetReadBuffer(int(piece))
		all.Go(func() {
			_, _ = io.Copy(client, server)
			_ = client.Close()
		})
		tick := time.NewTicker(every)
		defer tick.Stop()
		for left := first; left > 0; left -= piece {
			if _, err := io.CopyN(server, client, piece); err != nil {
				return
			}
			<-tick.C
		}
		_, _ = io.Copy(server, client)
	}
	all.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				_ = client.Close()
				continue
			}
			all.Go(func() { forward(client.(*net.TCPConn), server.(*net.TCPConn)) })
		}
	})
	return listener.Addr().String()
}

// The send timeout starts after the write, and each write has its own timeout.
func TestAnUploadMayTakeLongerThanTheSendTimeout(t *testing.T) {
	t.Parallel()
	broker := services.SharedRabbitMQ(t)
	u := broker.VHost(t)
	q := newAdmin(t, u).queue(services.Name(t), nil)
	const size = 12 << 20
	timeout := await.Scaled(2 * time.Second)
	slow := throttled(t, broker.Addr(), size*3/4, 64<<10, timeout/64) // 9 MB take more than twice the timeout
	r := startAMQP(t, Config{URL: withHost(t, u, slow), SendTimeout: timeout})
	mark := r.Mark()
	large := (&publishtest.Maker{}).Make("", q, "")
	large.Payload, large.Binary = make([]byte, size), true
	began := time.Now()
	r.PublishAll(large)
	publishtest.AllAre(t, r.AwaitResults(t, large), outbox.Confirmed)
	if took := time.Since(began); took < 3*timeout/2 || r.Mark() != mark {
		t.Errorf("took %v; the connection was lost: %v", took, r.Mark() != mark)
	}
}

// It starts when the socket has the whole message.
func TestTheSendTimeoutStartsAfterTheWrite(t *testing.T) {
	const timeout = time.Second
	s := newLink(opened{clock: newClock()}, timeout)
	s.clock.start = s.clock.start.Add(-10 * timeout)
	r := newReaper(&session{link: s})
	e := &entry{}
	r.pending = append(r.pending, e)
	if r.expire(); len(s.lost) > 0 {
		t.Error("the connection was closed during an upload")
	}
	e.sentAt = s.clock.now()
	e.published.Store(true)
	if r.expire(); len(s.lost) > 0 {
		t.Error("the connection was closed right after the upload")
	}
	e.sentAt -= timeout
	if r.expire(); len(s.lost) == 0 {
		t.Error("the connection to a silent broker was not closed")
	}
}

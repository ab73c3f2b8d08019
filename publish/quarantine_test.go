package publish

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/internal/services"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// fragile is a way to a broker that ends the connection over each message with the poison in it, as a
// bug of the broker or of one of its plugins does.
type fragile struct {
	listener net.Listener
	broker   string
	running  sync.WaitGroup
	ended    atomic.Int64 // connections, over poison
}

var poison = []byte("poison")

func newFragile(t *testing.T, broker string) *fragile {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fragile{listener: listener, broker: broker}
	f.running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // closed
			}
			f.running.Go(func() { f.serve(t, client) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		f.running.Wait()
	})
	return f
}

func (f *fragile) serve(t *testing.T, client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", f.broker)
	if err != nil {
		t.Error(err)
		return
	}
	defer server.Close()
	var writing sync.Mutex // whole frames to the client
	f.running.Go(func() {
		for frame := range frames(server) {
			writing.Lock()
			_, err := client.Write(frame)
			writing.Unlock()
			if err != nil {
				break
			}
		}
		_ = client.Close()
	})
	var header [8]byte
	if _, err := io.ReadFull(client, header[:]); err != nil {
		return
	}
	_, _ = server.Write(header[:])
	for frame := range frames(client) {
		if bytes.Contains(frame, poison) {
			f.ended.Add(1)
			writing.Lock()
			_, _ = client.Write(closeFrame(amqp.InternalError, "INTERNAL_ERROR"))
			writing.Unlock()
			_, _ = io.Copy(io.Discard, client) // until it has read that
			return
		}
		if _, err := server.Write(frame); err != nil {
			return
		}
	}
}

// frames are those that a peer sends, each with its end octet.
func frames(from io.Reader) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for {
			frame := make([]byte, 7)
			if _, err := io.ReadFull(from, frame); err != nil {
				return
			}
			rest := make([]byte, binary.BigEndian.Uint32(frame[3:])+1)
			if _, err := io.ReadFull(from, rest); err != nil || !yield(append(frame, rest...)) {
				return
			}
		}
	}
}

// closeFrame is connection.close.
func closeFrame(code uint16, text string) []byte {
	method := []byte{0, 10, 0, 50}
	method = binary.BigEndian.AppendUint16(method, code)
	method = append(append(method, byte(len(text))), text...)
	method = append(method, 0, 60, 0, 40)
	frame := binary.BigEndian.AppendUint32([]byte{1, 0, 0}, uint32(len(method)))
	return append(append(frame, method...), 0xce)
}

// publishUntilAnswered publishes as the relay does: what has no certain result, again.
func publishUntilAnswered(t *testing.T, r *running, messages []*outbox.Message) []outbox.Result {
	t.Helper()
	answered := make([]outbox.Result, len(messages))
	open := make([]int, len(messages))
	for i := range open {
		open[i] = i
	}
	for len(open) > 0 {
		var again []*outbox.Message
		for _, i := range open {
			m := *messages[i]
			again = append(again, &m)
		}
		r.publish(again...)
		var still []int
		for n, result := range r.awaitResults(t, again...) {
			if result.Outcome == outbox.Unknown || result.Outcome == outbox.NotSent {
				still = append(still, open[n])
				continue
			}
			answered[open[n]] = result
		}
		open = still
	}
	return answered
}

// TestAMessageThatEndsEveryConnectionIsRefused, and all others leave. Its next attempts cost a
// connection each.
func TestAMessageThatEndsEveryConnectionIsRefused(t *testing.T) {
	t.Parallel()
	u := services.VHost(t)
	a := newAdmin(t, u)
	q := a.queue(services.Name(t), nil)
	f := newFragile(t, services.SharedRabbitMQ(t).Addr())
	r := startAMQP(t, AMQPConfig{URL: withHost(t, u, f.listener.Addr().String())})
	var k maker
	messages := k.many(200, "", q)
	const bad = 100
	messages[bad].Payload = poison
	results := publishUntilAnswered(t, r, messages)
	refused := results[bad]
	if refused.Outcome != outbox.Refused || refused.Reason != outbox.ReasonChannelClosed || !refused.MaybeSent ||
		!strings.Contains(refused.Detail, "INTERNAL_ERROR (541)") {
		t.Errorf("the message: %+v", refused)
	}
	allAre(t, append(results[:bad:bad], results[bad+1:]...), outbox.Confirmed)
	before := f.ended.Load()
	if before != 1+fatalAlone {
		t.Errorf("%d connections ended, want %d", before, 1+fatalAlone)
	}
	results = publishUntilAnswered(t, r, messages[bad:bad+1])
	allAre(t, results, outbox.Refused)
	if more := f.ended.Load() - before; more != 1 {
		t.Errorf("the next attempt cost %d connections", more)
	}
	results = publishUntilAnswered(t, r, k.many(100, "", q))
	allAre(t, results, outbox.Confirmed)
}

// TestQuarantine: it counts how often it was the message alone, forgets what has an answer, and is bounded.
func TestQuarantine(t *testing.T) {
	q := newQuarantine()
	one, other := &outbox.Message{ID: 1}, &outbox.Message{ID: 2}
	if q.holds(one) {
		t.Error("held without a reason")
	}
	for times := range 3 {
		q.add(one, false)
		if n := q.add(one, true); n != times+1 {
			t.Errorf("alone for the %dth time: %d", times+1, n)
		}
	}
	if !q.holds(one) || q.holds(other) {
		t.Error("the wrong one is held")
	}
	q.release(one)
	if q.holds(one) || q.add(one, true) != 1 {
		t.Error("an answer did not clear it")
	}
	for id := range int64(2 * mostQuarantined) {
		q.add(&outbox.Message{ID: id}, false)
	}
	if len(q.alone) > mostQuarantined {
		t.Errorf("%d are held", len(q.alone))
	}
}

func TestEndedByBroker(t *testing.T) {
	for _, c := range []struct {
		exception *amqp.Error
		want      bool
	}{
		{nil, false},
		{&amqp.Error{Code: amqp.InternalError, Server: true}, true},
		{&amqp.Error{Code: amqp.FrameError, Server: true}, true},
		{&amqp.Error{Code: amqp.FrameError}, false}, // the network, as the library tells it
		{&amqp.Error{Code: amqp.ConnectionForced, Server: true}, false},
	} {
		if endedByBroker(c.exception) != c.want {
			t.Errorf("%v", c.exception)
		}
	}
}

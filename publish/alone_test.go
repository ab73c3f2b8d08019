package publish

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/internal/await"
	"github.com/cdc-relay/cdc-relay/internal/services"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// fragile is a proxy to a broker. It ends the connection at each message with the poison in it, like a bug of the
// broker or of a plugin.
type fragile struct {
	listener net.Listener
	broker   string
	running  sync.WaitGroup
	ended    atomic.Int64 // connections ended because of poison
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
	var writing sync.Mutex // guards whole frames to the client
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

// frames returns the frames of a peer, each with its end octet.
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

// publishUntilCertain publishes messages, and repeats those without a certain result until all have one, or until stop
// returns true after a round. Each round adds new messages.
func publishUntilCertain(t *testing.T, r *running, messages []*outbox.Message, fresh func() []*outbox.Message, stop func() bool) map[int64]outbox.Result {
	t.Helper()
	certain := make(map[int64]outbox.Result)
	for len(messages) > 0 && !stop() {
		var again []*outbox.Message
		for _, m := range append(messages, fresh()...) {
			m := *m
			again = append(again, &m)
		}
		r.publish(again...)
		messages = nil
		for _, result := range r.awaitResults(t, again...) {
			if result.Outcome == outbox.Unknown || result.Outcome == outbox.NotSent {
				messages = append(messages, result.Message)
				continue
			}
			certain[result.Message.ID] = result
		}
	}
	return certain
}

func never() bool { return false }

// aFew is how many connections may end because of a message. On a busy machine, one may end after the wait for the
// message, which does not count.
const aFew = 4 * fatalAlone

func (r *recorder) hasRejected(id int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for m, results := range r.results {
		if m.ID == id && slices.ContainsFunc(results, func(result outbox.Result) bool { return result.Outcome == outbox.Rejected }) {
			return true
		}
	}
	return false
}

// All others leave and are not charged, neither those in flight with it nor those for a queue that never answers.
func TestAMessageThatEndsEveryConnectionIsRejected(t *testing.T) {
	t.Parallel()
	u, q, stuck := withStuckQueue(t)
	f := newFragile(t, services.SharedRabbitMQ(t).Addr())
	r := startAMQP(t, AMQPConfig{URL: withHost(t, u, f.listener.Addr().String()), SendTimeout: await.Scaled(2 * time.Second)})
	var k maker
	messages := k.many(200, "", q)
	fresh := func() []*outbox.Message { return k.many(5, "", q) }
	bad := messages[100]
	bad.Payload = poison
	unanswered := (&maker{id: 1 << 30}).many(3, "", stuck)
	rejected := func() bool { return r.hasRejected(bad.ID) }
	results := publishUntilCertain(t, r, append(unanswered, messages...), fresh, rejected)
	of := results[bad.ID]
	if of.Outcome != outbox.Rejected || of.Reason != outbox.ReasonChannelClosed || !of.MaybeSent ||
		!strings.Contains(of.Detail, "INTERNAL_ERROR (541)") {
		t.Errorf("the message: %+v", of)
	}
	delete(results, bad.ID)
	for _, result := range results {
		if result.Outcome != outbox.Confirmed {
			t.Errorf("another: %+v", result)
		}
	}
	before := f.ended.Load()
	if before < 1+fatalAlone || before > aFew {
		t.Errorf("%d connections ended, want %d or a few more", before, 1+fatalAlone)
	}
	results = publishUntilCertain(t, r, []*outbox.Message{bad}, fresh, never)
	if more := f.ended.Load() - before; more < 1 || more > aFew || results[bad.ID].Outcome != outbox.Rejected {
		t.Errorf("the next attempt cost %d connections: %+v", more, results[bad.ID])
	}
	for _, result := range publishUntilCertain(t, r, k.many(100, "", q), fresh, never) {
		if result.Outcome != outbox.Confirmed {
			t.Errorf("afterwards: %+v", result)
		}
	}
}

// Later messages for the same queue overtake it.
func TestAMessageThatEndsConnectionsIsRejectedUnderLowTraffic(t *testing.T) {
	t.Parallel()
	u := services.VHost(t)
	q := newAdmin(t, u).queue(services.Name(t), nil)
	f := newFragile(t, services.SharedRabbitMQ(t).Addr())
	r := startAMQP(t, AMQPConfig{URL: withHost(t, u, f.listener.Addr().String())})
	var k maker
	bad := k.make("", q, string(poison))
	const lonely = 4
	one := func() []*outbox.Message {
		if f.ended.Load() < lonely {
			return nil
		}
		return k.many(1, "", q)
	}
	results := publishUntilCertain(t, r, []*outbox.Message{bad}, one, func() bool { return r.hasRejected(bad.ID) })
	if results[bad.ID].Outcome != outbox.Rejected {
		t.Errorf("%+v", results[bad.ID])
	}
	if n := f.ended.Load(); n > lonely+aFew {
		t.Errorf("it took %d connections", n)
	}
}

// A broken broker ends connections as a harmful message does, but no message is at fault.
func TestABrokenBrokerChargesNoMessage(t *testing.T) {
	t.Parallel()
	u := services.VHost(t)
	f := newFragile(t, services.SharedRabbitMQ(t).Addr())
	r := startAMQP(t, AMQPConfig{URL: withHost(t, u, f.listener.Addr().String())})
	var k maker
	messages := k.many(3, "", "anywhere")
	for _, m := range messages {
		m.Payload = poison
	}
	const often = 3 * (1 + fatalAlone)
	results := publishUntilCertain(t, r, messages, func() []*outbox.Message { return nil }, func() bool { return f.ended.Load() >= often })
	for _, result := range results {
		t.Errorf("%+v", result)
	}
}

// A connection that ends counts against a message only if it was alone, and if the broker answered others on that
// connection. An answer clears the message.
func TestOnlyAMessageSentAloneIsSuspected(t *testing.T) {
	s := newAloneList()
	one, other := &outbox.Message{ID: 1}, &outbox.Message{ID: 2}
	is := func(m *outbox.Message, want bool, wantEnded int) {
		t.Helper()
		if listed, ended := s.has(m); listed != want || ended != wantEnded {
			t.Errorf("listed %v, %d times; want %v, %d", listed, ended, want, wantEnded)
		}
	}
	is(one, false, 0)
	s.add(one, false, true)
	is(one, true, 0)
	is(other, false, 0)
	for range 2 * fatalAlone {
		if s.add(one, true, false) || s.add(one, false, true) {
			t.Fatal("it is charged although the broker answers nothing else, or others were in flight")
		}
	}
	is(one, true, 1)
	for times := 2; times <= fatalAlone+1; times++ {
		if culprit := s.add(one, true, true); culprit != (times >= fatalAlone) {
			t.Errorf("alone for the %d. time: culprit %v", times, culprit)
		}
	}
	s.remove(one)
	is(one, false, 0)
	for id := range int64(2 * mostAlone) {
		s.add(&outbox.Message{ID: id}, false, true)
	}
	if len(s.ended) > mostAlone {
		t.Errorf("%d are held", len(s.ended))
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
		{&amqp.Error{Code: amqp.FrameError}, false}, // the library reports a network error like this
		{&amqp.Error{Code: amqp.ConnectionForced, Server: true}, false},
	} {
		if endedByBroker(c.exception) != c.want {
			t.Errorf("%v", c.exception)
		}
	}
}

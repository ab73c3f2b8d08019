package amqp

import (
	"bytes"
	"encoding/binary"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// fragile is a proxy to a broker. It ends the connection at each message with the poison in it, like a bug of the
// broker or of a plugin.
type fragile struct {
	*services.Frames
	// harms reports at which frames of the client the connection ends. changes, if set, changes the others.
	harms   func(frame []byte) bool
	changes func(frame []byte) []byte
	// code is that of connection.close; 0: the connection ends without a reason. reset: not even in order.
	code  uint16
	reset bool
	ended atomic.Int64 // connections ended because of poison
}

var poison = []byte("poison")

func startFragile(t *testing.T, f *fragile) *fragile {
	t.Helper()
	if f.harms == nil {
		f.harms = func(frame []byte) bool { return bytes.Contains(frame, poison) }
	}
	f.Frames = services.NewFrames(t, services.SharedRabbitMQ(t).Addr(), f.fromClient)
	return f
}

func (f *fragile) fromClient(client net.Conn, frame []byte) []byte {
	switch {
	case f.harms(frame):
		f.end(client)
		return nil
	case f.changes != nil:
		return f.changes(frame)
	}
	return frame
}

func (f *fragile) end(client net.Conn) {
	f.ended.Add(1)
	if f.reset {
		_ = client.(*net.TCPConn).SetLinger(0)
	}
	if f.code != 0 {
		f.Send(client, closeFrame(f.code, "INTERNAL_ERROR"))
		_, _ = io.Copy(io.Discard, client) // until it has read that
	}
}

func closeFrame(code uint16, text string) []byte {
	method := []byte{0, 10, 0, 50}
	method = binary.BigEndian.AppendUint16(method, code)
	method = append(append(method, byte(len(text))), text...)
	method = append(method, 0, 60, 0, 40)
	frame := binary.BigEndian.AppendUint32([]byte{1, 0, 0}, uint32(len(method)))
	return append(append(frame, method...), 0xce)
}

// aFew is how many connections may end because of a message. On a busy machine, one may end after the wait for the
// message, which does not count.
const aFew = 4 * publish.EndsAlone

// All others leave and are not charged, neither those in flight with it nor those for a queue that never answers.
func TestAMessageThatEndsEveryConnectionIsRejected(t *testing.T) {
	t.Parallel()
	u, q, stuck := withStuckQueue(t)
	f := startFragile(t, &fragile{code: amqp091.InternalError})
	r := startAMQP(t, Config{URL: withHost(t, u, f.Addr()), SendTimeout: await.Scaled(2 * time.Second)})
	var k publishtest.Maker
	messages := k.Many(200, "", q)
	fresh := func() []*outbox.Message { return k.Many(5, "", q) }
	bad := messages[100]
	bad.Payload = poison
	unanswered := (&publishtest.Maker{ID: 1 << 30}).Many(3, "", stuck)
	rejected := func(certain publishtest.Settled) bool { return certain[bad.ID].Outcome == outbox.Rejected }
	results, _ := r.Settle(t, append(unanswered, messages...), fresh, rejected)
	of := results[bad.ID]
	if of.Outcome != outbox.Rejected || of.Reason != outbox.ReasonChannelClosed || !of.MaybeSent ||
		!strings.Contains(of.Detail, "INTERNAL_ERROR (541)") {
		t.Errorf("the message: %+v", of)
	}
	delete(results, bad.ID)
	publishtest.AllAre(t, slices.Collect(maps.Values(results)), outbox.Confirmed)
	before := f.ended.Load()
	if before < 1+publish.EndsAlone || before > aFew {
		t.Errorf("%d connections ended, want %d or a few more", before, 1+publish.EndsAlone)
	}
	again := *bad
	results, _ = r.Settle(t, []*outbox.Message{&again}, fresh, nil)
	if more := f.ended.Load() - before; more < 1 || more > aFew || results[bad.ID].Outcome != outbox.Rejected {
		t.Errorf("the next attempt cost %d connections: %+v", more, results[bad.ID])
	}
	results, _ = r.Settle(t, k.Many(100, "", q), fresh, nil)
	publishtest.AllAre(t, slices.Collect(maps.Values(results)), outbox.Confirmed)
}

// Later messages for the same queue overtake it.
func TestAMessageThatEndsConnectionsIsRejectedUnderLowTraffic(t *testing.T) {
	t.Parallel()
	u, _, q := withQueue(t)
	f := startFragile(t, &fragile{code: amqp091.InternalError})
	r := startAMQP(t, Config{URL: withHost(t, u, f.Addr())})
	var k publishtest.Maker
	bad := k.Make("", q, string(poison))
	const lonely = 4
	one := func() []*outbox.Message {
		if f.ended.Load() < lonely {
			return nil
		}
		return k.Many(1, "", q)
	}
	results, _ := r.Settle(t, []*outbox.Message{bad}, one, func(certain publishtest.Settled) bool {
		return certain[bad.ID].Outcome == outbox.Rejected
	})
	if results[bad.ID].Outcome != outbox.Rejected {
		t.Errorf("%+v", results[bad.ID])
	}
	if n := f.ended.Load(); n > lonely+aFew {
		t.Errorf("it took %d connections", n)
	}
}

// publishAlone publishes a message again and again, with no others, until its result is certain.
func (r *running) publishAlone(t *testing.T, m *outbox.Message) outbox.Result {
	t.Helper()
	certain, _ := r.Settle(t, []*outbox.Message{m}, nil, nil)
	return certain[m.ID]
}

// Without other messages, the broker shows that it works by its answers to probes.
func TestAMessageThatEndsConnectionsIsRejectedInAQuietSystem(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		how     *fragile
		bad     int
		limited bool // the user may not publish to the default exchange
		want    string
	}{
		{"connection.close 541", &fragile{code: amqp091.InternalError}, 1, false, "(541)"},
		{"connection.close 501", &fragile{code: amqp091.FrameError}, 1, false, "(501)"},
		{"connection.close 504", &fragile{code: amqp091.ChannelError}, 1, false, "(504)"},
		{"closed without a reason", &fragile{}, 1, false, "the other side closed it"},
		{"reset", &fragile{reset: true}, 1, false, "connection reset by peer"},
		{"two messages", &fragile{code: amqp091.InternalError}, 2, false, "(541)"},
		{"few privileges", &fragile{code: amqp091.InternalError}, 1, true, "(541)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			u, a, x, q := withExchange(t, "fanout", "")
			if c.limited {
				u = limitedUser(t, u, "^"+x+"$")
			}
			f := startFragile(t, c.how)
			r := startAMQP(t, Config{URL: withHost(t, u, f.Addr())})
			messages := (&publishtest.Maker{}).Many(c.bad, x, "")
			for _, m := range messages {
				m.Payload = poison
			}
			good := (&publishtest.Maker{ID: 100}).Make(x, "", "good")
			most := int64(publish.EndsTogether + c.bad*(publish.EndsAlone+1))
			tooMany := func(publishtest.Settled) bool { return f.ended.Load() > most }
			results, _ := r.Settle(t, messages, nil, tooMany)
			for _, result := range results {
				if result.Outcome != outbox.Rejected || result.Reason != outbox.ReasonChannelClosed || !result.MaybeSent ||
					!strings.Contains(result.Detail, c.want) {
					t.Errorf("got %+v", result)
				}
			}
			if tooMany(nil) {
				t.Errorf("it took more than %d connections", most)
			}
			publishtest.AllAre(t, []outbox.Result{r.publishAlone(t, good)}, outbox.Confirmed)
			if n := len(a.drain(q)); n != 1 {
				t.Errorf("%d messages arrived, want 1: a probe must reach no queue", n)
			}
		})
	}
}

// A broken broker or network ends connections as a harmful message does, but no message is at fault.
func TestAnOutageThatLooksLikeAHarmfulMessageChargesNobody(t *testing.T) {
	t.Parallel()
	method := func(class, method byte) func([]byte) bool {
		return func(frame []byte) bool {
			return frame[0] == 1 && bytes.Equal(frame[7:11], []byte{0, class, 0, method})
		}
	}
	publishes := method(60, 40)
	for name, how := range map[string]*fragile{
		"each publish fails":        {code: amqp091.InternalError, harms: publishes},
		"each publish ends it":      {harms: publishes},
		"each publish resets it":    {reset: true, harms: publishes},
		"each channel is an error":  {code: amqp091.InternalError, harms: method(20, 10)},
		"shut down at each message": {code: amqp091.ConnectionForced},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startFragile(t, how)
			r := startAMQP(t, Config{URL: withHost(t, services.VHost(t), f.Addr())})
			messages := (&publishtest.Maker{}).Many(3, "", "anywhere")
			for _, m := range messages {
				m.Payload = poison
			}
			const often = publish.EndsTogether + publish.EndsAlone + 2
			enough := func(publishtest.Settled) bool { return f.ended.Load() >= often }
			if results, _ := r.Settle(t, messages, nil, enough); len(results) > 0 {
				t.Errorf("%+v", results)
			}
		})
	}
}

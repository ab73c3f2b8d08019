package amqp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
)

func TestOnlyNotFoundIsAVerdictOfALookUp(t *testing.T) {
	server := func(code int) error { return &amqp091.Error{Code: code, Server: true} }
	for name, c := range map[string]struct {
		err    error
		closed bool
		reason outbox.Reason
		lost   bool
	}{
		"found":                 {},
		"403":                   {err: server(amqp091.AccessRefused)},
		"404":                   {err: server(amqp091.NotFound), reason: outbox.ReasonNoExchange},
		"405":                   {err: server(amqp091.ResourceLocked)},
		"406":                   {err: server(amqp091.PreconditionFailed)},
		"501":                   {err: server(amqp091.FrameError), closed: true, lost: true},
		"530":                   {err: server(amqp091.NotAllowed), closed: true, lost: true},
		"541":                   {err: server(amqp091.InternalError), closed: true, lost: true},
		"404 and then the end":  {err: server(amqp091.NotFound), closed: true, lost: true},
		"the connection ended":  {err: amqp091.ErrClosed, closed: true, lost: true},
		"the channel was ended": {err: amqp091.ErrClosed, lost: true},
		"cut":                   {err: errors.New("connection reset by peer"), lost: true},
	} {
		missing, lost := lookedUp(c.err, c.closed)
		if missing.reason != c.reason || lost != c.lost {
			t.Errorf("%s: %+v, lost: %v", name, missing, lost)
		}
	}
}

func isLookUp(frame []byte) bool {
	return frame[0] == 1 && bytes.Equal(frame[7:11], []byte{0, 40, 0, 10})
}

// The message is published, and its own answer counts: confirmed, or the exception of a publish.
func TestARejectedLookUpIsNotARejectedMessage(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(frame []byte) []byte{
		// The default exchange may not be declared: 403.
		"403": func(frame []byte) []byte {
			name := int(frame[13])
			changed := append(append(bytes.Clone(frame[:13]), 0), frame[14+name:]...)
			binary.BigEndian.PutUint32(changed[3:], uint32(len(changed)-8))
			return changed
		},
		// Not passive, and of another type: 406.
		"406": func(frame []byte) []byte {
			changed := bytes.Clone(frame)
			changed[len(changed)-6] &^= 1
			return changed
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u, a, x, q := withExchange(t, "fanout", "")
			var asked atomic.Int64
			f := startFragile(t, &fragile{
				harms: func([]byte) bool { return false },
				changes: func(frame []byte) []byte {
					if isLookUp(frame) {
						asked.Add(1)
						return change(frame)
					}
					return frame
				},
			})
			r := startAMQP(t, Config{URL: withHost(t, u, f.Addr())})
			var k publishtest.Maker
			good := k.Many(100, x, "")
			publishtest.AllAre(t, r.Answers(t, good...), outbox.Confirmed)
			if name == "403" {
				bad := k.Make("missing", "", "{}")
				checkRejected(t, r.Answers(t, bad)[0], outbox.ReasonNoExchange)
			}
			if n := len(a.drain(q)); n != 100 || asked.Load() == 0 {
				t.Errorf("%d messages arrived, %d look-ups were sent", n, asked.Load())
			}
		})
	}
}

// A broker that cannot answer it would otherwise lose every connection, and no message would be charged.
func TestALookUpThatEndsTheConnectionIsNotRepeated(t *testing.T) {
	t.Parallel()
	u, _, x, _ := withExchange(t, "fanout", "")
	f := startFragile(t, &fragile{code: amqp091.InternalError, harms: isLookUp})
	r := startAMQP(t, Config{URL: withHost(t, u, f.Addr())})
	var k publishtest.Maker
	results, _ := r.Settle(t, k.Many(20, x, ""), nil, func(publishtest.Settled) bool {
		return f.ended.Load() > 1
	})
	if len(results) != 20 || f.ended.Load() != 1 {
		t.Errorf("%d of 20 messages have a result, and %d connections ended, want 1", len(results), f.ended.Load())
	}
	publishtest.AllAre(t, slices.Collect(maps.Values(results)), outbox.Confirmed)
}

package amqp

import (
	"encoding/binary"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// The number of messages does not matter. Each look-up costs a channel, which the broker closes and logs. Other
// messages are unaffected.
func TestAMissingExchangeIsLookedUpOnceASecond(t *testing.T) {
	vhost, a, q := withQueue(t)
	sent := newMethods(t)
	r := startAMQP(t, Config{URL: withHost(t, vhost, sent.Addr())})
	missing := services.Name(t) + "_missing"
	var k publishtest.Maker
	good := 0
	began := time.Now()
	for time.Since(began) < 5*missingFor/2 {
		ok, bad := k.Many(200, "", q), k.Many(20, missing, q)
		r.PublishAll(ok...)
		r.PublishAll(bad...)
		publishtest.AllAre(t, r.AwaitResults(t, ok...), outbox.Confirmed)
		for _, result := range r.AwaitResults(t, bad...) {
			checkRejected(t, result, outbox.ReasonNoExchange)
		}
		good += len(ok)
	}
	// Two for the good messages, of which the first was sent alone, and one for each started second.
	if n, most := sent.count(channelOpen), 3+int(time.Since(began)/missingFor); n > most {
		t.Errorf("%d channels were opened, want at most %d", n, most)
	}
	if n := sent.count(basicPublish); n != good {
		t.Errorf("%d messages were sent, %d can be published", n, good)
	}
	a.exchange(missing, "fanout", q, "")
	made := time.Now()
	for found := false; !found; {
		m := k.Make(missing, q, `{}`)
		found = r.Answers(t, m)[0].Outcome == outbox.Confirmed
		if took := time.Since(made); took > await.Hang() {
			t.Fatalf("%v after its creation the exchange is still reported as missing", took)
		}
	}
}

// method is an AMQP method, by class and number.
type method [2]uint16

var (
	channelOpen     = method{20, 10}
	exchangeDeclare = method{40, 10}
	basicPublish    = method{60, 40}
)

// methods is a proxy to a broker that counts the methods of its clients.
type methods struct {
	*services.Frames
	mu     sync.Mutex
	called map[method]int
}

func newMethods(t *testing.T) *methods {
	t.Helper()
	m := &methods{called: make(map[method]int)}
	m.Frames = services.NewFrames(t, services.SharedRabbitMQ(t).Addr(), func(_ net.Conn, frame []byte) []byte {
		if frame[0] == 1 {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.called[method{binary.BigEndian.Uint16(frame[7:]), binary.BigEndian.Uint16(frame[9:])}]++
		}
		return frame
	})
	return m
}

func (m *methods) count(one method) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.called[one]
}

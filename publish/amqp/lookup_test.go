package amqp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
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

// free reports whether a result costs no attempt, and is tried again soon.
func free(r outbox.Result) bool {
	return r.Outcome == outbox.NotSent && r.RetryIn > 0 && r.RetryIn <= latestRetry
}

// Consumers declare transient queues and exchanges again only after they have found the broker again themselves.
func TestAMissingRouteRightAfterAnOutageCostsNoAttempt(t *testing.T) {
	t.Parallel()
	takes, _, proxy, url := behindProxyWithFullQueue(t)
	r := startAMQP(t, Config{URL: url})
	var k publishtest.Maker
	for _, target := range [][2]string{{"", "no.such.queue"}, {"amq.topic", "no.such.key"}, {"no.such.exchange", "k"}} {
		publish := func() outbox.Result {
			m := k.Make(target[0], target[1], `{}`)
			return r.Answers(t, m)[0]
		}
		if got := publish(); got.Outcome != outbox.Rejected {
			t.Errorf("%s on the first connection: %+v, want a rejection", target, got)
		}
		r.reconnect(t, proxy)
		if got := r.outcome(t, k.Make("", takes, `{}`)); got != outbox.Confirmed {
			t.Errorf("another queue: %s", got)
		}
		if got := publish(); !free(got) {
			t.Errorf("%s after an outage: %+v, want a free retry", target, got)
		}
		p := r.Publisher.(*Publisher)
		p.missing.restored.Store(time.Now().Add(-returnsWithin).UnixNano())
		if got := publish(); got.Outcome != outbox.Rejected {
			t.Errorf("%s long after the outage: %+v, want a rejection", target, got)
		}
	}
}

// RabbitMQ has no route to a classic queue whose node is down, but says that the queue exists. The connection survives.
func TestAQueueOfAStoppedNodeCostsNoAttempt(t *testing.T) {
	services.Thorough(t, "starts two brokers, and one of them again")
	t.Parallel()
	cluster := services.PrivateRabbitMQCluster(t, 2)
	up, down := cluster.Nodes[0], cluster.Nodes[1]
	vhost := services.Name(t)
	must(t, up.AddVHost(t.Context(), vhost))
	newAdmin(t, down.URL(vhost)).queue("classic", nil)
	r := startAMQP(t, Config{URL: up.URL(vhost)})
	var k publishtest.Maker
	publish := func(queue string) outbox.Result {
		m := k.Make("", queue, `{}`)
		return r.Answers(t, m)[0]
	}
	must(t, down.Stop(t.Context()))
	if got := publish("classic"); !free(got) || !strings.Contains(got.Detail, "is down or inaccessible") {
		t.Errorf("while the node is down: %+v, want a free retry", got)
	}
	if got := publish("no.such.queue"); got.Outcome != outbox.Rejected {
		t.Errorf("a queue that nobody declared: %+v, want a rejection", got)
	}
	must(t, down.Start(t.Context()))
	await.Until(t, "the queue takes messages again", func() bool { return publish("classic").Outcome == outbox.Confirmed })
}

// A relay that knows several nodes asks them about routes of exchanges, of which RabbitMQ says nothing.
func TestAMissingRouteCostsNoAttemptWhileANodeOfTheAddressIsDown(t *testing.T) {
	t.Parallel()
	broker := services.SharedRabbitMQ(t)
	other := services.NewProxy(t, broker.Addr())
	url := withHost(t, broker.VHost(t), broker.Addr()+","+other.Addr())
	var k publishtest.Maker
	publish := func() outbox.Result {
		m := k.Make("amq.topic", "no.such.key", `{}`)
		r := startAMQP(t, Config{URL: url})
		return r.Answers(t, m)[0]
	}
	if got := publish(); got.Outcome != outbox.Rejected {
		t.Errorf("while all nodes are up: %+v, want a rejection", got)
	}
	other.Close()
	if got := publish(); !free(got) {
		t.Errorf("while a node is down: %+v, want a free retry", got)
	}
	// Each try costs Postgres an UPDATE, so many messages are not tried again at the same time.
	r, many := startAMQP(t, Config{URL: url}), k.Many(500, "amq.topic", "no.such.key")
	began := time.Now()
	r.PublishAll(many...)
	var last time.Duration
	for _, got := range r.AwaitResults(t, many...) {
		if last = max(last, got.RetryIn); !free(got) {
			t.Fatalf("many messages while a node is down: %+v, want free retries", got)
		}
	}
	if all := time.Since(began) + last; all < 500*excusedEvery {
		t.Errorf("500 messages are tried again within %s", all)
	}
}

// A node that never returns does not excuse missing routes for ever.
func TestANodeThatNeverReturnsExcusesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := make(answers)
		down := func() bool {
			nodes.learn("a", "down")
			why, _ := nodes.anyDown()
			return why != ""
		}
		for began := time.Now(); down(); time.Sleep(latestRetry) {
			if time.Since(began) > mostOutage {
				t.Fatal("it still excuses missing routes")
			}
		}
		if time.Sleep(time.Minute); down() {
			t.Error("it excuses missing routes again")
		}
		if nodes.learn("a", ""); !down() {
			t.Error("it was up, and does not count as down")
		}
	})
}

// Each message without a place gets a later time, so that they do not all come at once.
func TestMessagesWithoutAPlaceComeOneAfterTheOther(t *testing.T) {
	p := newPlaces(80)
	p.pace = time.Second
	m, now := &outbox.Message{}, time.Now()
	last, back := time.Duration(0), 0
	for range 80 {
		taken, retryIn := p.take(m, now)
		if taken {
			continue
		}
		if back++; retryIn < last || retryIn < soonest || retryIn > latest {
			t.Errorf("%s after %s", retryIn, last)
		}
		last = retryIn
	}
	if p.messages != 30 || back != 50 {
		t.Errorf("%d messages have a place and %d went back, want three eighths of 80", p.messages, back)
	}
	if last < latest-time.Second {
		t.Errorf("the last of 50 comes after %s", last)
	}
	p.leave(m)
	if taken, _ := p.take(m, now); !taken {
		t.Error("a free place was not given")
	}
}

func TestTheBytesThatWaitAreBounded(t *testing.T) {
	p := newPlaces(80)
	p.pace = time.Second
	take := func(m *outbox.Message) bool {
		taken, _ := p.take(m, time.Now())
		return taken
	}
	large := &outbox.Message{Row: outbox.Row{Payload: make([]byte, 20<<20)}}
	if !take(large) {
		t.Error("a message larger than the share never gets a place")
	}
	if take(&outbox.Message{}) {
		t.Error("a place beside it was given")
	}
	if p.leave(large); !take(&outbox.Message{}) {
		t.Error("a free place was not given")
	}
}

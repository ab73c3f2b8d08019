package amqp

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
)

const (
	// returnsWithin is how long after an outage a missing queue or exchange costs no attempt. Consumers declare it
	// again once they are back themselves.
	returnsWithin = 30 * time.Second
	// mostOutage is how long a node or a queue may be down and still excuse missing routes: it may never return.
	mostOutage = time.Hour
	// soonestRetry and latestRetry bound the wait before the next try of an excused message. Each try costs Postgres an
	// UPDATE, so of many messages one is tried again every excusedEvery.
	soonestRetry, latestRetry = time.Second, 5 * time.Minute
	excusedEvery              = 10 * time.Millisecond
)

// missing is the sink of all sessions. A missing queue or exchange costs no attempt while RabbitMQ is not whole: right
// after an outage, while a node of the address is down, and while RabbitMQ says that the queue exists nevertheless. All
// other results pass unchanged.
type missing struct {
	publish.Sink
	// unsure are results that wait until RabbitMQ was asked.
	unsure *publish.Mailbox[outbox.Result]

	restored atomic.Int64 // when a connection ended the last outage, in nanoseconds of Unix time
	excused  atomic.Int64 // when the last excused message is tried again, likewise

	// Only the goroutine of ask uses the fields below: what is known of queues, and of nodes by their address.
	queues, nodes answers
	second        time.Time // in which asked questions were asked
	asked         int
}

func newMissing(sink publish.Sink) *missing {
	return &missing{
		Sink: sink, unsure: publish.NewMailbox[outbox.Result](), queues: make(answers), nodes: make(answers),
	}
}

// Deliver implements publish.Sink.
func (m *missing) Deliver(r outbox.Result) {
	since := time.Since(time.Unix(0, m.restored.Load()))
	noQueue, noExchange := r.Reason == outbox.ReasonUnroutable, r.Reason == outbox.ReasonNoExchange
	switch {
	case r.Outcome != outbox.Rejected || !noQueue && !noExchange:
		m.Sink.Deliver(r)
	case since < returnsWithin:
		m.excuse(r, since, "RabbitMQ was unavailable a moment ago")
	case noQueue:
		m.unsure.Put(r)
	default:
		m.Sink.Deliver(r)
	}
}

// excuse reports a result that costs no attempt. The longer the outage, and the more messages wait for its end, the
// later the next try.
func (m *missing) excuse(r outbox.Result, lasts time.Duration, why string) {
	now := time.Now().UnixNano()
	soonest := now + int64(max(lasts/4, soonestRetry))
	at := min(max(m.excused.Load()+int64(excusedEvery), soonest), now+int64(latestRetry))
	m.excused.Store(at) // two that come at the same time may get the same one
	r.Outcome, r.RetryIn = outbox.NotSent, time.Duration(at-now)
	r.Detail += "; no attempt is counted: " + why
	m.Sink.Deliver(r)
}

// ask judges unsure results while the session lasts.
func (m *missing) ask(s *session) {
	for !s.over() {
		select {
		case <-s.ended:
		case <-m.unsure.Wake():
			m.judge(s, m.unsure.Take(nil))
		}
	}
}

// judge reports results after RabbitMQ was asked.
func (m *missing) judge(s *session, results []outbox.Result) {
	m.askNodes(s)
	why, lasts := m.nodes.anyDown()
	for _, r := range results {
		why, lasts := why, lasts
		if why == "" && s.limits.ExchangeOf(r.Message) == "" {
			why, lasts = m.queueDown(s, r.Message.RoutingKey)
		}
		if why == "" {
			m.Sink.Deliver(r)
			continue
		}
		m.excuse(r, lasts, why)
	}
}

// queueDown says why RabbitMQ routes nothing to a queue that exists; "": there is none. RabbitMQ logs each question as
// an error, so only a few are asked in a second; another queue that is down then speaks for the rest.
func (m *missing) queueDown(s *session, queue string) (why string, lasts time.Duration) {
	const most = 20
	known := m.queues.fresh(queue)
	if second := time.Now().Truncate(time.Second); second.After(m.second) {
		m.second, m.asked = second, 0
	}
	switch {
	case strings.HasPrefix(queue, directReply): // RabbitMQ pretends that it exists
		return "", 0
	case known:
	case m.asked >= most:
		return m.queues.anyDown()
	default:
		m.asked++
		if err := m.askQueue(s, queue); err != nil {
			return "the connection was lost meanwhile", 0
		}
	}
	return m.queues.down(queue)
}

// askNodes tries the other nodes of the address.
func (m *missing) askNodes(s *session) {
	const accept = 500 * time.Millisecond
	for _, node := range s.others {
		address := node.Address()
		if s.over() || m.nodes.fresh(address) {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), accept)
		conn, err := amqpdial.DialHost(ctx, "tcp", address, accept)
		cancel()
		if err != nil {
			m.nodes.learn(address, "node "+address+" is down")
			continue
		}
		_ = conn.Close()
		m.nodes.learn(address, "")
	}
}

// askQueue asks whether RabbitMQ knows a queue.
func (m *missing) askQueue(s *session, queue string) error {
	err := s.limited("look up queue", func() error {
		channel, err := s.connection.Channel()
		if err != nil {
			return err
		}
		if _, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil); err != nil {
			return err
		}
		return channel.Close()
	})
	var exception *amqp091.Error
	switch {
	case err == nil:
		m.queues.learn(queue, "the queue exists now")
	case !errors.As(err, &exception) || !exception.Server || s.connection.IsClosed():
		return err
	case exception.Code == amqp091.AccessRefused || amqpdial.NoQueue(exception):
		m.queues.learn(queue, "")
	default:
		m.queues.learn(queue, exception.Reason)
	}
	return nil
}

// answers is what was found out about things by their names.
type answers map[string]answer

// answer says why something is down, and since when; no reason: it is not.
type answer struct {
	why       string
	since, at time.Time
}

// fresh reports whether an answer need not be asked for again.
func (a answers) fresh(name string) bool { return time.Since(a[name].at) < time.Second }

func (a answers) learn(name, why string) {
	const most = 256 // more than are asked while an answer counts
	now := time.Now()
	one := a[name]
	if one.why == "" || now.Sub(one.at) > 2*latestRetry { // nobody knows what was between
		one.since = now
	}
	if len(a) >= most {
		clear(a)
	}
	a[name] = answer{why: why, since: one.since, at: now}
}

// down says why something is down, and for how long; not if that is too long.
func (a answers) down(name string) (why string, lasts time.Duration) {
	one := a[name]
	if lasts = time.Since(one.since); lasts < mostOutage {
		why = one.why
	}
	return why, lasts
}

// anyDown is down for the first of them.
func (a answers) anyDown() (why string, lasts time.Duration) {
	for name := range a {
		if why, lasts = a.down(name); why != "" {
			break
		}
	}
	return why, lasts
}

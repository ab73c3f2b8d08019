package amqp

import (
	"context"
	"errors"
	"strings"
	"sync"
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
	// unsure are results that wait until RabbitMQ was asked; asking: a call asks.
	unsure []outbox.Result
	asking bool

	restored atomic.Int64 // when a connection ended the last outage, in nanoseconds of Unix time
	excused  int64        // when the last excused message is tried again, likewise

	queues, nodes answers   // the nodes by their address
	tried         time.Time // when the nodes were
	second        time.Time // in which asked questions were asked
	asked         int
}

func newMissing(sink publish.Sink) *missing {
	return &missing{Sink: sink, queues: make(answers), nodes: make(answers)}
}

// Deliver implements publish.Sink.
func (m *missing) Deliver(r outbox.Result) {
	noQueue, noExchange := r.Reason == outbox.ReasonUnroutable, r.Reason == outbox.ReasonNoExchange
	if r.Outcome != outbox.Rejected || !noQueue && !noExchange {
		m.Sink.Deliver(r)
		return
	}
	switch since := time.Since(time.Unix(0, m.restored.Load())); {
	case since < returnsWithin:
		m.excuse(r, since, "RabbitMQ was unavailable a moment ago")
	case noQueue:
		m.unsure = append(m.unsure, r)
	default:
		m.Sink.Deliver(r)
	}
}

// excuse reports a result that costs no attempt. The longer the outage, and the more messages wait for its end, the
// later the next try.
func (m *missing) excuse(r outbox.Result, lasts time.Duration, why string) {
	now := time.Now().UnixNano()
	soonest := now + int64(max(lasts/4, soonestRetry))
	m.excused = min(max(m.excused+int64(excusedEvery), soonest), now+int64(latestRetry))
	r.Outcome, r.RetryIn = outbox.NotSent, time.Duration(m.excused-now)
	r.Detail += "; no attempt is counted: " + why
	m.Sink.Deliver(r)
}

// judge reports unsure results, until a call must ask RabbitMQ first.
func (m *missing) judge(s *session) {
	for len(m.unsure) > 0 && !m.asking {
		if len(s.others) > 0 && time.Since(m.tried) > time.Second {
			m.ask(s, "connect to other nodes", func() error { return m.tryNodes(s) })
			return
		}
		r := m.unsure[0]
		why, lasts := m.nodes.anyDown()
		if queue := r.Message.RoutingKey; why == "" && s.limits.ExchangeOf(r.Message) == "" {
			if m.mayAsk(queue) {
				m.ask(s, "look up queue", func() error { return m.askQueue(s, queue) })
				return
			}
			why, lasts = m.queueDown(queue)
		}
		m.unsure = m.unsure[1:]
		if why == "" {
			m.Sink.Deliver(r)
		} else {
			m.excuse(r, lasts, why)
		}
	}
}

// ask makes a call, and continues afterwards.
func (m *missing) ask(s *session, what string, call func() error) {
	m.asking = true
	s.do(what, call, func(err error) {
		if m.asking = false; err != nil {
			m.excuse(m.unsure[0], 0, lostMeanwhile)
			m.unsure = m.unsure[1:]
		}
	})
}

const lostMeanwhile = "the connection was lost meanwhile"

// end reports unsure results after the end of a session.
func (m *missing) end() {
	for _, r := range m.unsure {
		m.excuse(r, 0, lostMeanwhile)
	}
	m.unsure, m.asking = nil, false
}

// mayAsk reports whether RabbitMQ is asked about a queue. It logs each question as an error, so only a few are asked in
// a second. It pretends that the queue of a direct reply exists.
func (m *missing) mayAsk(queue string) bool {
	const most = 20
	if second := time.Now().Truncate(time.Second); second.After(m.second) {
		m.second, m.asked = second, 0
	}
	if m.queues.fresh(queue) || m.asked >= most || strings.HasPrefix(queue, directReply) {
		return false
	}
	m.asked++
	return true
}

// queueDown says why RabbitMQ routes nothing to a queue that exists; "": there is none. Another queue that is down
// speaks for those that are not asked about.
func (m *missing) queueDown(queue string) (why string, lasts time.Duration) {
	switch {
	case strings.HasPrefix(queue, directReply):
		return "", 0
	case !m.queues.fresh(queue):
		return m.queues.anyDown()
	}
	return m.queues.down(queue)
}

// tryNodes tries the other nodes of the address.
func (m *missing) tryNodes(s *session) error {
	const accept = 500 * time.Millisecond
	down := make([]string, len(s.others))
	var trying sync.WaitGroup
	for i, node := range s.others {
		trying.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), accept)
			defer cancel()
			conn, err := amqpdial.DialHost(ctx, "tcp", node.Address(), accept)
			if err != nil {
				down[i] = "node " + node.Address() + " is down"
				return
			}
			_ = conn.Close()
		})
	}
	trying.Wait()
	for i, node := range s.others {
		m.nodes.learn(node.Address(), down[i])
	}
	m.tried = time.Now()
	return nil
}

// askQueue asks whether RabbitMQ knows a queue.
func (m *missing) askQueue(s *session, queue string) error {
	channel, err := s.connection.Channel()
	if err == nil {
		if _, err = channel.QueueDeclarePassive(queue, true, false, false, false, nil); err == nil {
			err = channel.Close()
		}
	}
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

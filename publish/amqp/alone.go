package amqp

import (
	"errors"
	"fmt"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/publish/wire"
)

// The wait for the answer to a message sent alone. An exception comes at once. A confirm may take longer; then the
// reaper waits for it. Each wait without an answer halves the next one, because many messages may be for a queue that
// never answers.
const (
	longestWait  = 500 * time.Millisecond
	shortestWait = 50 * time.Millisecond
)

// isolation sends messages alone: each gets its answer, or had ample time for it, before the next one leaves. So an
// exception shows which message is the cause. It belongs to the job that uses it.
type isolation struct {
	*session
	lane *lane // nil until needed
	// hasUnanswered: a message on that lane is unanswered. waited: the last message is.
	hasUnanswered, waited bool
	// wait is the wait for the next answer, between shortestWait and longestWait.
	wait time.Duration
	// mostLeft bounds the isolation lanes that the session keeps for unanswered messages.
	mostLeft int64
}

func newIsolation(s *session) *isolation {
	const most = 4
	channels := int(s.connection.Config.ChannelMax)
	left := min(max(channels-laneLimit(channels)-spareChannels, 0), most)
	return &isolation{session: s, wait: longestWait, mostLeft: int64(left)}
}

// hindrance returns why nothing can be sent now; without an outcome, sending is possible.
func (s *session) hindrance() verdict {
	switch {
	case s.over():
		return lostBeforeSent()
	case !s.clock.running():
		return verdict{outcome: outbox.NotSent, detail: "RabbitMQ has blocked the connection"}
	}
	return verdict{}
}

// giveUp reports a message that is not sent (again). If it may have reached the broker before, it is Unknown, so that
// its retry is marked. The exception is wholeExchange: as Unknown, the message would be sent again for ever.
func (s *session) giveUp(r resend, v verdict) {
	if r.sent && !v.wholeExchange {
		v.outcome, v.reason = outbox.Unknown, ""
	}
	s.sink.Deliver(v.result(r.message, r.sent))
}

// giveUpAll reports messages of a connection that was lost before they were sent again.
func (s *session) giveUpAll(messages []resend) {
	for _, m := range messages {
		s.giveUp(m, lostBeforeSent())
	}
}

// send sends one message and waits for its answer for a while; after that, only the reaper waits. Without an answer the
// verdict is empty. The message has its result then, or the reaper delivers it. Alone: no other job sends meanwhile.
func (i *isolation) send(s resend, alone bool) verdict {
	i.waited = false
	p, err := i.encode(s.message, s.sent || s.message.MayBeKnown())
	if err != nil {
		result := wire.Impossible(s.message, err)
		result.MaybeSent = s.sent
		i.sink.Deliver(result)
		return verdict{}
	}
	stop := verdict{}
	if err := i.prove(i.suspects.Of(s.message)); err != nil {
		i.lose(err)
		stop = lostBeforeSent()
	} else {
		stop = i.open()
	}
	if stop.outcome != 0 {
		i.giveUp(s, stop)
		return stop
	}
	e := &entry{
		message: s.message,
		lane:    i.lane,
		resent:  s.sent,
		marked:  p.marked,
		settled: make(chan struct{}),
	}
	e.awaited.Store(alone)
	i.inFlight.Add(1)
	i.sent.Add(reaperNews{entry: e})
	_ = e.send(p, i.clock) // the reaper handles the error
	i.sent.Signal()
	return i.await(e)
}

// await waits for the answer of an entry for a while.
func (i *isolation) await(e *entry) verdict {
	longest := min(longestWait, i.sendTimeout/4)
	timer := time.NewTimer(min(i.wait, longest))
	defer timer.Stop()
	select {
	case <-e.settled:
		i.hasUnanswered = i.hasUnanswered || e.verdict.outcome == outbox.Unknown
		i.wait = min(i.wait*2, longest)
		return e.verdict
	case <-timer.C:
		e.awaited.Store(false)
		i.suspects.Clear(e.message) // the connection still exists
		i.hasUnanswered, i.waited = true, true
		i.wait = min(max(i.wait/2, shortestWait, i.throttle.manyTimesThere()), longest)
	case <-i.ended:
	}
	return verdict{}
}

// troubled reports whether the last message has made the broker close the channel, or has no answer.
func (i *isolation) troubled() bool { return i.waited || (i.lane != nil && i.lane.channel.IsClosed()) }

// open opens an isolation lane if needed. A lane with an unanswered message is not used again, because that message may
// still make the broker close the channel. If many lanes are left this way, messages share one, and an exception on it
// is charged to none (see reaper.settle).
func (i *isolation) open() (stop verdict) {
	if i.lane != nil && !i.lane.channel.IsClosed() {
		if !i.hasUnanswered {
			return verdict{}
		}
		if i.left.Add(1) > i.mostLeft {
			i.left.Add(-1)
			return verdict{}
		}
		i.sent.Put(reaperNews{seal: i.lane, evicted: true})
	}
	i.hasUnanswered = false
	i.lane, stop = i.openLane("", false, false)
	return stop
}

// reservedName is a routing key that reaches no queue: RabbitMQ lets nobody choose a queue name with this prefix.
const reservedName = "amq.cdc-relay.probe"

var errUnproved = errors.New("the connection was lost before the answer to a probe")

// prove checks that the broker works before a message is sent alone, if connections may end at it, or nothing was
// answered since the last one was lost. The connection must survive twice the time that the message left the last one,
// and the broker must then answer a message that no queue receives. So neither an outage nor a proxy that ends each
// connection is taken for a fault of the message, and a system without other messages finds it, too.
func (s *session) prove(known publish.Suspect) error {
	if known.Alone == 0 && (s.heard.Load() || !known.MustBeAlone() && !s.again) {
		return nil
	}
	if known.Alone > 0 {
		timer := time.NewTimer(min(2*known.Lasted, longestWait))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-s.ended:
			return errUnproved
		}
	}
	err := s.limited("publish a probe", s.probe)
	if err == nil {
		s.tellFirstAnswer()
	}
	return err
}

// probe publishes a message that no queue receives, and waits for the answer. A missing permission is an answer, too.
// It uses its own channel, which the broker may close.
func (c *link) probe() error {
	channel, err := c.connection.Channel()
	if err != nil {
		return fmt.Errorf("open channel: %w", err)
	}
	if err := channel.Confirm(false); err != nil {
		return fmt.Errorf("select confirm mode: %w", err)
	}
	confirm, err := channel.PublishWithDeferredConfirm("", reservedName, false, false, amqp091.Publishing{})
	if err != nil {
		return fmt.Errorf("publish a probe: %w", err)
	}
	select {
	case <-confirm.Done():
	case <-c.ended:
	}
	if c.over() || c.connection.IsClosed() {
		return errUnproved
	}
	if channel.IsClosed() { // 403: the user may not publish to the default exchange
		return nil
	}
	return channel.Close()
}

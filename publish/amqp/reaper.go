package amqp

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/publish/wire"
)

// scanEvery is how often the reaper checks all messages while the oldest is unanswered. So a queue that never confirms
// does not delay the others.
const scanEvery = 10 * time.Millisecond

// reaperNews are events for the reaper, in their order.
type reaperNews struct {
	// entry will be sent next.
	entry *entry
	// seal: nothing more is sent on this lane. Its unanswered messages are sent again alone if it died. If it was
	// evicted, its answers still come.
	seal    *lane
	evicted bool
}

// reaper is the goroutine that waits for confirms and delivers the results of all sent messages. Only it reads returns.
// It reads them before it decides on a confirm, because the broker sends a return before the confirm. Only this
// goroutine uses its fields.
type reaper struct {
	*session
	pending []*entry // unanswered, in the order sent; nil: settled meanwhile
	dying   []*lane  // closed by the broker, with messages to send again
	news    []reaperNews
	// lastAnswer is when the broker last confirmed or rejected, on the session's clock.
	lastAnswer time.Duration
	// renewed is when a nack last asked for a new lane.
	renewed time.Time
}

func newReaper(s *session) *reaper { return &reaper{session: s} }

// renewEvery is the least time between two lanes that nacks ask for: full queues send many nacks.
const renewEvery = 500 * time.Millisecond

// run works until stop is closed. Then no confirm can come any more, and nothing more is sent.
func (r *reaper) run(stop <-chan struct{}) {
	scan := time.NewTimer(scanEvery)
	defer scan.Stop()
	for {
		r.takeNews()
		for len(r.pending) > 0 && r.pending[0].resolved() {
			r.settle(r.pending[0], false)
			r.pending[0] = nil
			r.pending = r.pending[1:]
		}
		if len(r.pending) == 0 {
			select { // without the timer, so that an idle relay costs nothing
			case <-r.sent.Wake():
			case <-stop:
				r.finish()
				return
			}
			continue
		}
		scan.Reset(scanEvery)
		select {
		case <-r.oldestConfirm():
		case <-scan.C:
			r.takeNews()
			r.settleIf((*entry).resolved, false)
			r.expire()
		case <-stop:
			r.finish()
			return
		}
	}
}

func (r *reaper) takeNews() {
	r.news = r.sent.Take(r.news)
	for _, n := range r.news {
		if n.seal != nil {
			n.seal.sealed = true
			n.seal.evicted = n.evicted
			r.closeSealed(n.seal)
			continue
		}
		n.entry.lane.waiting++
		n.entry.lane.newest = n.entry
		r.pending = append(r.pending, n.entry)
	}
}

// oldestConfirm returns the confirm of the oldest entry; nil while it is being sent.
func (r *reaper) oldestConfirm() <-chan struct{} {
	e := r.pending[0]
	if !e.published.Load() || e.err != nil {
		return nil
	}
	return e.confirm.Done()
}

// settleIf settles entries. More may be sent meanwhile.
func (r *reaper) settleIf(done func(*entry) bool, timedOut bool) {
	for i := 0; i < len(r.pending); i++ {
		if e := r.pending[i]; done(e) {
			r.settle(e, timedOut)
			r.pending[i] = nil
		}
	}
	r.pending = slices.DeleteFunc(r.pending, func(e *entry) bool { return e == nil })
}

// expire gives up messages that have waited longer than SendTimeout. If the broker has answered nothing since, the
// connection is lost.
func (r *reaper) expire() {
	now := r.clock.now()
	oldest := now
	for _, e := range r.pending {
		if e.published.Load() { // else it is being written, and the socket bounds that
			oldest = min(oldest, e.sentAt)
		}
	}
	if !r.clock.running() || now-oldest < r.sendTimeout {
		return
	}
	if !r.heard.Load() || r.lastAnswer < oldest {
		r.lose(errors.New("RabbitMQ confirmed nothing within the send timeout"))
		return
	}
	r.settleIf(func(e *entry) bool {
		return e.published.Load() && now-e.sentAt >= r.sendTimeout && r.lastAnswer >= e.sentAt
	}, true)
}

// settle decides on one entry. The caller then removes it.
func (r *reaper) settle(e *entry, timedOut bool) {
	l := e.lane
	found := r.evidence(e, timedOut)
	v := classify(found)
	l.waiting--
	if l.shared {
		r.throttle.answered(e.epoch)
		r.renew(l, timedOut, v.nacked)
	}
	r.inFlight.Add(-1) // before the result, which admits the next message
	r.noteAnswer(e, v)
	if v.outcome == outbox.Unknown {
		v = r.unanswered(e, found, v)
	}
	if v.replay {
		r.sendAgain(l, resend{message: e.message, sent: !found.unsent || e.resent})
	} else {
		r.report(e, v)
	}
	r.closeSealed(l)
}

// evidence collects what is known of an entry.
func (r *reaper) evidence(e *entry, timedOut bool) evidence {
	l := e.lane
	r.takeReturns(l)
	if !l.shared {
		r.takeNews() // another message may have been sent on this lane
	}
	found := evidence{
		unsent:   errors.Is(e.err, amqp091.ErrClosed),
		acked:    e.err == nil && e.confirm.Acked(),
		timedOut: timedOut,
		returned: e.returned,
		shared:   l.shared,

		recovering: r.recovering(),
	}
	// The order matters: the library marks the connection first, then its channels.
	found.channelClosed = l.channel.IsClosed()
	found.connectionClosed = r.connection.IsClosed() || (e.err != nil && !found.unsent)
	if found.channelClosed && !found.acked {
		found.exception = l.reason()
		if loginExpired(found.exception) {
			r.lose(fmt.Errorf("the login has expired%s", because(found.exception)))
		}
		l.crowded = l.crowded || l.waiting > 1
	}
	found.alone = !l.shared && !l.crowded && l.newest == e && !namesAnotherSize(found.exception, len(e.message.Payload))
	return found
}

// renew asks for a new lane. After a timeout, the library remembers each later confirm of the channel until the missing
// one comes: the memory would grow. After a nack, the channel may have met a quorum queue without a leader. RabbitMQ
// 3.10 then rejects everything for that queue on that channel until the old leader is back.
func (r *reaper) renew(l *lane, timedOut, nacked bool) {
	if !l.replaced && (timedOut || nacked && time.Since(r.renewed) > renewEvery) {
		if nacked {
			r.renewed = time.Now()
		}
		r.replace(l)
	}
}

// replace tells the sender to use another lane.
func (r *reaper) replace(l *lane) {
	if !l.replaced && !l.sealed {
		l.replaced = true
		r.control.Put(laneNews{lane: l})
	}
}

// sendAgain keeps a message of a dead lane for the job that sends them alone.
func (r *reaper) sendAgain(l *lane, one resend) {
	if len(l.resends) == 0 {
		r.dying = append(r.dying, l)
		r.replace(l)
	}
	l.resends = append(l.resends, one)
}

// closeSealed closes a sealed lane without unanswered messages, and passes its messages to send again to the sender.
func (r *reaper) closeSealed(l *lane) {
	if !l.sealed || l.waiting > 0 {
		return
	}
	if !l.channel.IsClosed() {
		r.closeChannel(l.channel)
	}
	if !l.shared {
		r.left.Add(-1)
	}
	if l.evicted && len(l.resends) == 0 {
		return
	}
	r.control.Put(laneNews{job: &job{
		exchange: l.exchange, opens: !l.evicted, messages: l.resends, dead: true, cause: l.reason(),
	}})
	l.resends = nil
	r.dying = slices.DeleteFunc(r.dying, func(other *lane) bool { return other == l })
}

// unanswered records what a missing answer says about the message.
func (r *reaper) unanswered(e *entry, evidence evidence, v verdict) verdict {
	switch {
	case evidence.timedOut && !evidence.connectionClosed:
		r.suspects.Clear(e.message)
	case evidence.connectionClosed:
		stated := endedByBroker(evidence.exception)
		if !stated && !cutByPeer(evidence.exception, e.err) {
			return v
		}
		times, culprit := r.suspects.Blame(e.message, publish.SessionEnd{
			Alone: e.awaited.Load(), Stated: stated, Worked: r.heard.Load(), Lasted: r.clock.now() - e.sentAt,
		})
		if culprit {
			e.resent = true // the broker may have it nevertheless
			return fatal(times, evidence)
		}
	}
	return v
}

func (r *reaper) report(e *entry, v verdict) {
	if v.outcome == outbox.NotSent && e.resent {
		v.outcome = outbox.Unknown
	}
	e.verdict = v
	r.sink.Deliver(v.result(e.message, e.resent))
	if e.settled != nil {
		close(e.settled)
	}
}

// noteAnswer records what an answer says about the broker.
func (r *reaper) noteAnswer(e *entry, v verdict) {
	switch v.outcome {
	case outbox.Confirmed, outbox.Rejected, outbox.Impossible:
	default:
		return
	}
	r.suspects.Clear(e.message)
	r.lastAnswer = r.clock.now()
	r.throttle.confirmed(time.Since(e.message.SentAt)) // not the clock, which stops while the broker blocks
	r.tellFirstAnswer()
	if v.reason == outbox.ReasonTooLarge {
		_, most := bodySizes(v.detail)
		r.mostBody.Store(int64(most))
	}
}

// takeReturns matches the returns of a lane to messages.
func (r *reaper) takeReturns(l *lane) {
	for {
		select {
		case returned, ok := <-l.returns:
			if !ok {
				return
			}
			r.takeNews()
			r.match(l, &returned)
		default:
			return
		}
	}
}

// finish reports all remaining messages, after the connection is closed and the sender has stopped.
func (r *reaper) finish() {
	r.takeNews()
	for i := 0; i < len(r.pending); i++ {
		r.settle(r.pending[i], !r.pending[i].resolved())
		r.pending[i] = nil
	}
	r.pending = nil
	for _, l := range r.dying {
		r.giveUpAll(l.resends)
	}
	for _, n := range r.control.Take(nil) {
		if n.job != nil {
			r.giveUpAll(n.job.messages)
		}
	}
}

// match notes a return at its entry. RabbitMQ returns the message, but not its number on the channel. A return without
// an entry belongs to a message that timed out.
func (r *reaper) match(l *lane, returned *amqp091.Return) {
	id, err := outbox.ParseUUID([]byte(returned.MessageId))
	if err != nil {
		return
	}
	var first *entry
	for _, e := range r.pending {
		if e == nil {
			continue // just settled
		}
		m := e.message
		if e.lane != l || e.returned != nil || m.MessageID != id ||
			m.RoutingKey != returned.RoutingKey || r.limits.ExchangeOf(m) != returned.Exchange {
			continue
		}
		if first == nil {
			first = e
		}
		// Several rows may be equal in all of these; the headers may tell them apart.
		if sameContent(e, returned, r.limits) {
			first = e
			break
		}
	}
	if first != nil {
		first.returned = returned
	}
}

func sameContent(e *entry, returned *amqp091.Return, limits wire.Limits) bool {
	if !bytes.Equal(e.message.Payload, returned.Body) {
		return false
	}
	p, err := wire.Encode(e.message, limits, e.marked)
	none := len(p.Headers)+len(returned.Headers) == 0
	return err == nil && (none || reflect.DeepEqual(table(p.Headers), returned.Headers))
}

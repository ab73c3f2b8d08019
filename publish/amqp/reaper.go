package amqp

import (
	"errors"
	"fmt"
	"slices"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
)

// scanEvery is how often the reaper checks all messages while the oldest is unanswered. So a queue that never confirms
// does not delay the others.
const scanEvery = 10 * time.Millisecond

// reaperNews are events for the reaper, in their order.
type reaperNews struct {
	// entry will be sent next.
	entry *entry
	// seal: nothing more is sent on this lane. The sender learns its end after the last answer.
	seal *lane
}

// reaper is the goroutine that waits for confirms and delivers the results of all sent messages. Only it reads returns.
// It reads them before it decides on a confirm, because the broker sends a return before the confirm. Only this
// goroutine uses its fields.
type reaper struct {
	*session
	pending []*entry // unanswered, in the order sent; nil: settled meanwhile
	dying   []*lane  // closed by the broker, with messages to send again
	news    []reaperNews
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
			r.closeSealed(n.seal)
			continue
		}
		n.entry.lane.waiting++
		n.entry.lane.returned.sent(n.entry)
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

// expire gives up messages that have waited too long. If the broker has answered nothing since, the connection is lost.
func (r *reaper) expire() {
	if !r.clock.running() {
		return
	}
	var largest *entry
	for _, e := range r.pending {
		if largest == nil || len(e.message.Payload) > len(largest.message.Payload) {
			largest = e
		}
	}
	if largest == nil {
		return
	}
	size, now := len(largest.message.Payload), r.clock.now()
	r.largest.Store(int64(size))
	for _, e := range r.pending {
		// What is not published is being written, and the socket bounds that.
		if e.published.Load() && r.late(&e.wait, now) && !e.wait.arrived && r.lastAnswer.Load() < int64(e.wait.since) {
			err := fmt.Errorf("RabbitMQ confirmed nothing within %v", r.silence())
			if size >= 1<<20 {
				err = fmt.Errorf("%w; the largest message in flight is row %d with %d bytes",
					err, largest.message.ID, size)
			}
			r.lose(err)
			return
		}
	}
	r.settleIf(func(e *entry) bool { return e.published.Load() && r.late(&e.wait, now) }, true)
}

// settle decides on one entry. The caller then removes it.
func (r *reaper) settle(e *entry, timedOut bool) {
	l := e.lane
	found := r.evidence(e, timedOut)
	v := classify(found)
	l.waiting--
	l.crowded = l.crowded || timedOut // it may still make the broker close the channel
	r.noteAnswer(e, v)
	if l.shared {
		l.unanswered.Add(-1)
		r.throttle.answered(e.epoch)
		r.renew(l, timedOut, v.nacked)
	}
	r.inFlight.Add(-1) // before the result, which admits the next message
	if v.outcome == outbox.Unknown {
		v = r.unanswered(e, found, v)
	}
	if v.replay {
		r.sendAgain(l, resend{message: e.message, sent: !found.unsent || e.resent})
	} else {
		r.report(e, v)
	}
	if f := e.flight; f != nil {
		if f.unanswered--; f.unanswered == 0 {
			close(f.landed)
		}
	}
	r.closeSealed(l)
}

// evidence collects what is known of an entry.
func (r *reaper) evidence(e *entry, timedOut bool) evidence {
	l := e.lane
	r.takeReturns(l)
	found := evidence{
		unsent:   errors.Is(e.err, amqp091.ErrClosed),
		acked:    e.err == nil && e.confirm.Acked(),
		timedOut: timedOut,
		returned: e.returned,

		recovering: r.recovering(),
	}
	if one := l.returned.answered(e); one != nil {
		found.returned = one
	}
	// The order matters: the library marks the connection first, then its channels.
	found.channelClosed = l.channel.IsClosed()
	found.connectionClosed = r.connection.IsClosed() || (e.err != nil && !found.unsent)
	if found.channelClosed && !found.acked {
		r.takeNews() // another message may have been sent on this lane
		found.exception = l.reason()
		l.crowded = l.crowded || l.waiting > 1
		found.alone = !l.crowded && !couldNotAsk(found.exception)
	}
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

// sendAgain keeps a message of a dead lane for further flights.
func (r *reaper) sendAgain(l *lane, one resend) {
	if len(l.resends) == 0 {
		r.dying = append(r.dying, l)
		r.replace(l)
	}
	l.resends = append(l.resends, one)
}

// closeSealed closes a sealed lane without unanswered messages, and passes it to the sender.
func (r *reaper) closeSealed(l *lane) {
	if !l.sealed || l.waiting > 0 {
		return
	}
	if !l.channel.IsClosed() {
		r.closeChannel(l.channel)
	}
	r.dying = slices.DeleteFunc(r.dying, func(other *lane) bool { return other == l })
	r.control.Put(laneNews{ended: l})
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
			Alone: e.awaited.Load(), Stated: stated, Worked: r.heard.Load(), Lasted: r.clock.now() - e.wait.since,
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
	r.sink.Deliver(v.result(e.message, e.resent))
}

// noteAnswer records what an answer says about the broker.
func (r *reaper) noteAnswer(e *entry, v verdict) {
	switch v.outcome {
	case outbox.Confirmed, outbox.Rejected, outbox.Impossible:
	default:
		return
	}
	r.suspects.Clear(e.message)
	r.progress.note(e.began, r.clock.now())
	if r.foreign(e.parcel.body.UserId) && v.outcome == outbox.Confirmed {
		r.impersonates.Store(true)
	}
	r.throttle.confirmed(time.Since(e.message.SentAt)) // not the clock, which stops while the broker blocks
	r.tellFirstAnswer()
	if v.reason == outbox.ReasonTooLarge {
		_, most := bodySizes(v.detail)
		r.mostBody.Store(int64(most))
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
	for _, n := range r.control.Take(nil) {
		if n.ended != nil {
			r.dying = append(r.dying, n.ended)
		}
	}
	for _, l := range r.dying {
		r.giveUp(l.resends, lostBeforeSent())
	}
}

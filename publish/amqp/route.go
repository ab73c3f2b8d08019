package amqp

import (
	"slices"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish/wire"
)

// fullFlight is the size of the last flight of a slow start.
const fullFlight = 512

// item is a message to be sent.
type item struct {
	message *outbox.Message
	sent    bool // the broker may have it
	placed  bool // it has a place, see places
}

// route is the way of messages to one exchange. It starts slowly if no message to the exchange was answered on this
// connection: in flights, of which the next one begins after the answers to the last one. The route alone has flights
// of one message, of any exchange.
type route struct {
	exchange string
	alone    bool
	part     bool  // it has messages of a channel that died, and ends when each has its answer
	lane     *lane // nil until it is open; messages then wait in order
	dying    *lane // it was closed by the broker; messages wait for its end
	opening  bool  // in the queue, or under way: then begun
	begun    bool
	waiting  []item
	used     int // counts up with each message, so that the lane to give up is the one unused for longest

	size     int // of the next flight; 0: all messages leave at once
	flight   int // number of the last flight
	last     *entry
	flying   int  // its messages without an answer
	answered bool // it has had an answer

	// cause: nobody could ask for the permission of the first message, or of all.
	cause *amqp091.Error
	// The broker shows that it works before the next flight; see prove.
	proving, proved bool
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

// sendRest sends waiting messages within the limit of the throttle.
func (s *session) sendRest() {
	for {
		if len(s.rest) == 0 {
			s.batch = s.inbox.Messages.Take(s.batch)
			s.spare = s.spare[:0]
			for _, m := range s.batch {
				s.spare = append(s.spare, item{message: m})
			}
			s.rest = s.spare
		}
		n := len(s.rest)
		if n == 0 {
			s.stuck = 0
			s.throttle.ranOut()
			break
		}
		if v := s.hindrance(); v.outcome != 0 {
			s.giveUpAll(&s.rest, v)
			continue
		}
		if n = min(n, s.throttle.allowed(s.clock.now())); n == 0 {
			if s.stuck == 0 {
				s.answers, s.stuck = s.throttle.answers, s.clock.now()+s.throttle.longestSilence()
			}
			break
		}
		s.stuck = 0
		for ; n > 0; n-- {
			next := s.rest[0]
			s.rest = s.rest[1:]
			s.dispatch(next)
		}
	}
}

// rejectUnsent reports all messages that are not sent.
func (s *session) rejectUnsent(v verdict) {
	for _, r := range s.routes {
		s.giveUpAll(&r.waiting, v)
	}
	for _, parts := range s.parts {
		for r := range parts {
			s.giveUpAll(&r.waiting, v)
		}
	}
	s.giveUpAll(&s.alone.waiting, v)
	s.giveUpAll(&s.rest, v)
}

func (s *session) giveUpAll(items *[]item, v verdict) {
	all := *items
	*items = nil
	for _, one := range all {
		s.giveUp(one, v)
	}
}

// giveUp reports a message that is not sent (again). If it may have reached the broker before, it is Unknown, so that
// its retry is marked. The exception is wholeExchange: as Unknown, the message would be sent again for ever.
func (s *session) giveUp(one item, v verdict) {
	s.leavePlace(&one)
	if one.sent && !v.wholeExchange {
		v.outcome, v.reason = outbox.Unknown, ""
	}
	s.inbox.Sink.Deliver(v.result(one.message, one.sent))
}

// encodeItem encodes a message, or reports that this is impossible.
func (s *session) encodeItem(one *item) (parcel, bool) {
	p, err := s.encode(one.message, one.sent || one.message.MayBeKnown())
	if err != nil {
		s.leavePlace(one)
		s.unfit(one.message, err, one.sent)
	}
	return p, err == nil
}

func (s *session) unfit(m *outbox.Message, err error, sent bool) {
	result := wire.Impossible(m, err)
	result.MaybeSent = sent
	s.inbox.Sink.Deliver(result)
}

// dispatch sends a message, or lets it wait on its route.
func (s *session) dispatch(one item) {
	p, ok := s.encodeItem(&one)
	if !ok {
		return
	}
	r := s.alone
	if !s.risky(&p) && !s.suspects.Of(one.message).MustBeAlone() {
		if r = s.routes[p.exchange]; r == nil {
			known := s.exchanges[p.exchange]
			if time.Since(known.rejectedAt) < missingFor {
				s.giveUp(one, known.verdict)
				return
			}
			r = &route{exchange: p.exchange}
			if known.answered != s.number && (s.number > 1 || !s.exists(p.exchange)) {
				r.size = 1
			}
		}
	}
	slow := r.alone || len(s.parts[p.exchange]) > 0 || r.lane == nil && !r.begun && !s.exists(r.exchange)
	if slow && !s.admit(&one) {
		return
	}
	if r.lane != nil && r.size == 0 {
		s.publish(r, one, p)
		return
	}
	if !r.alone {
		s.routes[p.exchange] = r
	}
	r.waiting = append(r.waiting, one)
	if r.alone && s.suspects.Of(one.message).Alone > 0 {
		slices.SortStableFunc(r.waiting, func(a, b item) int { return s.suspects.Compare(a.message, b.message) })
	}
	s.advance(r)
}

// risky reports whether the broker may reject the message by its own rules: it limits bodies (max_message_size, 16 MiB
// since RabbitMQ 4.0; above mostBody they are not sent), and compares user_id with the login, unless that has the tag
// impersonator.
func (s *session) risky(p *parcel) bool {
	const common = 16 << 20
	return s.foreign(p) && !s.impersonates || len(p.body.Body) > common
}

func (s *session) foreign(p *parcel) bool {
	return p.body.UserId != "" && p.body.UserId != s.node.URI.Username
}

// advance sends what waits on a route, if it can.
func (s *session) advance(r *route) {
	if v := s.hindrance(); v.outcome != 0 {
		s.giveUpAll(&r.waiting, v)
	}
	switch {
	case r.dying != nil || r.opening:
	case len(r.waiting) == 0:
		if r.part && r.flying == 0 {
			s.endPart(r)
		} else if r.lane == nil && s.routes[r.exchange] == r {
			delete(s.routes, r.exchange)
		}
	case r.lane == nil:
		s.open(r)
	case r.size == 0:
		s.rest = append(r.waiting, s.rest...)
		r.waiting = nil
	case r.flying == 0:
		s.fly(r)
	}
}

// fly sends the next flight.
func (s *session) fly(r *route) {
	n := min(r.size, len(r.waiting), r.lane.most-r.lane.unanswered)
	if n <= 0 {
		s.replace(r)
		return
	}
	if r.alone && !s.prove(r) {
		return
	}
	flight := r.waiting[:n:n]
	r.waiting = r.waiting[n:]
	r.flight++
	r.answered = false
	for _, one := range flight {
		if p, ok := s.encodeItem(&one); ok {
			s.publish(r, one, p)
		}
	}
	if r.flying == 0 { // none can be sent
		s.advance(r)
	} else if !slices.Contains(s.flights, r) {
		s.flights = append(s.flights, r)
	}
}

// publish gives a message to the writer.
func (s *session) publish(r *route, one item, p parcel) {
	l := r.lane
	if l.unanswered >= l.most {
		if l.most >= s.cfg.MaxInFlight {
			s.giveUp(one, verdict{outcome: outbox.NotSent, detail: "more messages are in flight than were agreed"})
			return
		}
		s.widen(r, one)
		return
	}
	s.leavePlace(&one)
	s.messages++
	r.used = s.messages
	e := &entry{message: one.message, lane: l, parcel: p, resent: one.sent, epoch: s.throttle.sent()}
	if r.size > 0 {
		e.flight, r.last = r.flight, e
		e.suspect = r.alone && s.suspects.Of(one.message).MustBeAlone()
		r.flying++
	}
	l.unanswered++
	l.returned.sent(e)
	s.largest = max(s.largest, len(one.message.Payload))
	s.pending = append(s.pending, e)
	s.handed = append(s.handed, e)
	s.toWrite.Add(e)
	s.toSignal = true
}

// longestFlight is how long a flight may have no answers.
func (s *session) longestFlight() time.Duration {
	const before = time.Second // the first confirm
	if s.throttle.fastest == 0 {
		return min(before, s.sendTimeout/2)
	}
	return s.throttle.longestSilence()
}

// checkFlight continues after a flight that gets no answers: its messages may be for a queue that never answers.
func (s *session) checkFlight(r *route, now time.Duration) {
	switch {
	case r.flying == 0:
		s.flights = slices.DeleteFunc(s.flights, func(other *route) bool { return other == r })
		return
	case !r.last.published || now-r.last.wait.since < s.longestFlight():
		return
	}
	if r.alone {
		s.suspects.Clear(r.last.message) // the connection still exists
		s.replace(r)                     // a late exception must meet no other messages
	}
	s.endFlight(r, r.answered || s.number == 1) // after an outage, more would leave only to leave again
}

// endFlight begins the next flight, which is larger if the broker answers.
func (s *session) endFlight(r *route, answered bool) {
	r.flying = 0
	r.flight++
	if r.part || r.alone {
		s.places.passed(s.clock.now()-r.last.began, r.size)
	}
	if answered {
		s.grow(r)
	}
	s.advance(r)
}

// grow makes the next flight larger: the broker answers.
func (s *session) grow(r *route) {
	if r.alone || r.part {
		return
	}
	known := s.exchanges[r.exchange]
	known.answered = s.number
	s.remember(r.exchange, known)
	if r.size *= 2; r.size > fullFlight {
		r.size = 0
	}
}

// landed records that a message of a flight needs no answer any more.
func (s *session) landed(e *entry, answered bool) {
	r := e.lane.route
	if e.flight == 0 || e.flight != r.flight || r.flying == 0 {
		return
	}
	r.answered = r.answered || answered
	if r.flying--; r.flying == 0 {
		s.endFlight(r, r.answered)
	}
}

// bury continues with the messages of a channel that the broker has closed, when each has its answer or will get none.
// The exception belongs to a message if and only if no other was unanswered. Otherwise all leave again, in parts.
func (s *session) bury(l *lane) {
	r := l.route
	if r.lane == l {
		r.lane, r.dying = nil, l
	}
	if len(l.dead) < l.unanswered {
		return
	}
	s.channelEnded()
	if r.dying == l {
		r.dying = nil
	}
	switch other := s.routes[r.exchange]; {
	case r.alone:
	case r.part:
		s.addPart(r) // it may have ended, because it was silent
	case other == nil:
		s.routes[r.exchange] = r
	default:
		r = other
	}
	cause, sent := l.reason(), l.timedOut
	for _, e := range l.dead {
		if e.err == nil {
			sent++
		}
	}
	r.flying = 0
	r.flight++
	if s.connection.IsClosed() { // others may have been lost
		cause = nil
	}
	whole, unasked := verdictOnExchange(cause), couldNotAsk(cause)
	var again []item
	for _, e := range l.dead {
		l.unanswered--
		s.throttle.answered(e.epoch)
		one := item{message: e.message, sent: e.resent || e.err == nil}
		switch {
		case e.err == nil && sent == 1 && cause != nil && !unasked:
			s.report(e, s.noted(e, exceptionVerdict(cause)))
		case whole.outcome != 0 && !r.alone:
			s.giveUp(one, whole)
		default:
			again = append(again, one)
		}
	}
	l.dead = nil
	switch {
	case whole.outcome != 0 && !r.alone:
		s.stop(r, whole)
		return
	case unasked && (sent == 1 || exceptionVerdict(cause).wholeExchange):
		r.cause = cause
	case sent > 1 && !r.alone:
		s.split(r.exchange, again)
		again = nil
	}
	if cause != nil && !unasked {
		s.grow(r)
	}
	r.waiting = append(again, r.waiting...)
	s.advance(r)
}

// ways is the number of parts. With more of them, the culprit is alone sooner, and more channels are opened.
const ways = 4

// split sends messages of a dead channel again in parts, each with a lane of its own. Where a lane dies, its part is
// split again, until the culprit is alone. Other messages do not wait for that.
func (s *session) split(exchange string, suspects []item) {
	for some := range slices.Chunk(suspects, max((len(suspects)+ways-1)/ways, 1)) {
		for i := range some {
			s.places.add(some[i].message)
			some[i].placed = true
		}
		r := &route{exchange: exchange, part: true, waiting: some, size: len(some)}
		s.addPart(r)
		s.open(r)
	}
}

func (s *session) addPart(r *route) {
	if s.parts[r.exchange] == nil {
		s.parts[r.exchange] = make(map[*route]struct{})
	}
	s.parts[r.exchange][r] = struct{}{}
}

func (s *session) endPart(r *route) {
	s.seal(r)
	if delete(s.parts[r.exchange], r); len(s.parts[r.exchange]) == 0 {
		delete(s.parts, r.exchange)
	}
}

// stop reports the messages that wait for an exchange which rejects all.
func (s *session) stop(r *route, v verdict) {
	s.giveUpAll(&r.waiting, v)
	if r.part {
		s.endPart(r)
		return
	}
	s.seal(r)
	delete(s.routes, r.exchange)
	if v.wholeExchange || v.outcome == outbox.Rejected {
		s.remember(r.exchange, lookUp{rejectedAt: time.Now(), verdict: v})
	}
}

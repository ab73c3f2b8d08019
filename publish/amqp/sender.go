package amqp

import (
	"maps"
	"slices"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish/wire"
)

// mostLanes bounds the open lanes, and mostWide those of them that have room for the returns of all messages in flight.
// The others have an eighth of it.
const (
	mostLanes   = 256
	mostWide    = 24
	narrowShare = 8
)

// spareChannels is how many channels a session needs besides its lanes and flights.
const spareChannels = 8

// laneLimit is mostLanes, or less if the broker allows few channels: a quarter of them is for flights.
func laneLimit(channelMax int) int {
	return max(1, min(mostLanes, (channelMax-spareChannels)*3/4))
}

// route is the way of messages to one exchange. Its lane is nil until a job has opened it; messages then wait in order.
type route struct {
	lane    *lane
	waiting []*outbox.Message
	// slow: the messages that wait have places; see careful.admit.
	slow bool
	// held counts the dead lanes and flights whose end the exchange waits for, before it gets a lane.
	held int
	// stop is the verdict on all messages of the exchange, after those.
	stop verdict
	// used counts up with each message of the sender, so that the lane to give up is the one unused for longest.
	used int
}

// laneNews is an event for the sender. Without a value it only wakes the sender.
type laneNews struct {
	// lane must not be used any more: its channel is closed, or a message on it timed out or was rejected.
	lane *lane
	// ended is a sealed lane without unanswered messages.
	ended *lane
	// done is a job that has ended.
	done *job
}

// sender is the goroutine that takes messages and sends them. Only this goroutine uses its fields.
type sender struct {
	*session
	routes  map[string]*route
	careful *careful
	// batch was taken from in; rest is the unsent part of it.
	batch, rest []*outbox.Message
	news        []laneNews
	messages    int // sent by this sender
	// answers is the number of answers when stuck was set; stuck ends a pause without answers.
	answers int
	stuck   <-chan time.Time
}

func newSender(s *session) *sender {
	return &sender{session: s, routes: make(map[string]*route), careful: newCareful(s)}
}

func (s *sender) run() {
	for !s.over() {
		s.news = s.control.Take(s.news)
		for _, n := range s.news {
			s.learn(n)
		}
		s.sendRest()
		select {
		case <-s.ended:
		case <-s.in.Wake():
		case <-s.throttle.room:
		case <-s.stuck:
			s.stuck = nil
			s.throttle.notAnswered(s.answers)
		case <-s.control.Wake():
		}
	}
	s.rejectUnsent(lostBeforeSent())
	s.careful.finish()
}

// sendRest sends waiting messages within the limit of the throttle.
func (s *sender) sendRest() {
	for {
		if len(s.rest) == 0 {
			s.batch = s.in.Take(s.batch)
			s.rest = s.batch
		}
		if len(s.rest) == 0 {
			s.stuck = nil
			s.throttle.ranOut()
			return
		}
		n := len(s.rest)
		if s.clock.running() {
			n = min(n, s.throttle.allowed(s.clock.now()))
		}
		if n == 0 {
			if s.stuck == nil {
				longest, answers := s.throttle.longestSilence()
				s.answers, s.stuck = answers, time.After(longest)
			}
			return
		}
		s.stuck = nil
		s.acceptAll(s.rest[:n])
		s.rest = s.rest[n:]
	}
}

// acceptAll sends messages in as few writes as possible.
func (s *sender) acceptAll(batch []*outbox.Message) {
	if len(batch) == 0 {
		return
	}
	since := batch[0].TakenAt
	for _, m := range batch[1:] {
		if m.TakenAt.Before(since) {
			since = m.TakenAt
		}
	}
	s.socket.cork(since)
	for _, m := range batch {
		if v := s.hindrance(); v.outcome != 0 {
			s.sink.Deliver(v.result(m, false))
		} else {
			s.dispatch(m)
		}
	}
	if err := s.socket.uncork(); err != nil {
		s.lose(err)
	}
}

// rejectUnsent reports all unsent messages as not sent.
func (s *sender) rejectUnsent(v verdict) {
	for _, r := range s.routes {
		for _, m := range r.waiting {
			if r.slow {
				s.careful.leave(m)
			}
			s.sink.Deliver(v.result(m, false))
		}
		r.waiting = nil
	}
	for _, m := range s.rest {
		s.sink.Deliver(v.result(m, false))
	}
	s.rest = nil
}

// dispatch passes a message to its lane or its route, or makes it a job.
func (s *sender) dispatch(m *outbox.Message) {
	p, err := s.encode(m, m.MayBeKnown())
	if err != nil {
		s.sink.Deliver(wire.Impossible(m, err))
		return
	}
	if suspect := s.suspects.Of(m).MustBeAlone(); suspect || p.risky {
		if s.careful.admit(m) {
			s.do(&job{messages: []resend{{message: m}}, suspect: suspect})
		}
		return
	}
	r, known := s.routes[p.exchange], s.exchanges[p.exchange]
	switch {
	case r != nil && r.lane != nil:
		s.publish(r, m, p)
	case r == nil && time.Since(known.rejectedAt) < missingFor:
		s.sink.Deliver(known.verdict.result(m, false))
	case r == nil && (s.exists(p.exchange) || s.careful.admit(m)):
		s.routes[p.exchange] = &route{waiting: []*outbox.Message{m}, slow: !s.exists(p.exchange)}
		s.do(&job{exchange: p.exchange, first: s.exists(p.exchange)})
	case r != nil && (!r.slow || s.careful.admit(m)):
		r.waiting = append(r.waiting, m)
	}
}

// wide reports whether a lane has room for the returns of all messages in flight.
func (s *sender) wide(l *lane) bool { return l.most >= s.maxInFlight }

// exists reports whether the exchange existed when it was last used.
func (s *sender) exists(exchange string) bool {
	return exchange == "" || s.exchanges[exchange].found
}

// do queues a job, which begins as soon as it may.
func (s *sender) do(j *job) {
	s.careful.add(j)
	s.begin()
}

// begin runs the jobs that may begin. Their messages soon have an answer, so they need no place.
func (s *sender) begin() {
	for j := s.careful.begin(); j != nil; j = s.careful.begin() {
		switch {
		case len(j.messages) == 0:
			s.setSlow(s.routes[j.exchange], false)
			j.blind = s.exists(j.exchange) || s.exchanges[j.exchange].unanswered
			if j.most = s.maxInFlight; !s.exchanges[j.exchange].wide && s.countLanes(s.wide) >= mostWide {
				j.most = max(s.maxInFlight/narrowShare, 1)
			}
			if !s.exists(j.exchange) {
				s.remember(j.exchange, lookUp{unanswered: true})
			}
		case !j.again:
			s.careful.leave(j.messages[0].message)
		}
		s.careful.run(j)
	}
}

// remember records what is known of an exchange. Those that exist are forgotten last.
func (s *sender) remember(exchange string, known lookUp) {
	if _, again := s.exchanges[exchange]; !again && len(s.exchanges) >= mostExchanges {
		maps.DeleteFunc(s.exchanges, func(_ string, l lookUp) bool { return !l.found })
		if len(s.exchanges) >= mostExchanges {
			clear(s.exchanges)
		}
	}
	s.exchanges[exchange] = known
}

// setSlow gives places to the messages of a route that wait, or frees them. Those that find no place go back.
func (s *sender) setSlow(r *route, slow bool) {
	if r.slow == slow {
		return
	}
	r.slow = slow
	if slow {
		r.waiting = slices.DeleteFunc(r.waiting, func(m *outbox.Message) bool { return !s.careful.admit(m) })
		return
	}
	for _, m := range r.waiting {
		s.careful.leave(m)
	}
}

func (s *sender) publish(r *route, m *outbox.Message, p parcel) {
	if s.inFlight.Load() >= int64(s.maxInFlight) {
		v := verdict{outcome: outbox.NotSent, detail: "more messages are in flight than were agreed"}
		s.sink.Deliver(v.result(m, false))
		return
	}
	switch {
	case r.lane.channel.IsClosed():
		s.retire(r)
		r.waiting = append(r.waiting, m)
		return
	case r.lane.unanswered.Load() >= int64(r.lane.most):
		s.widen(p.exchange, m)
		return
	}
	s.messages++
	r.used = s.messages
	e := &entry{message: m, lane: r.lane, parcel: p, epoch: s.throttle.sent()}
	s.inFlight.Add(1)
	r.lane.unanswered.Add(1)
	s.sent.Add(reaperNews{entry: e})
	if err := e.send(s.clock); err != nil {
		s.retire(r)
	}
	s.sent.Signal()
}

// widen gives an exchange a lane with room for the returns of all messages in flight.
func (s *sender) widen(exchange string, m *outbox.Message) {
	s.giveUpLane(exchange)
	known := s.exchanges[exchange]
	known.found, known.wide = true, true
	s.remember(exchange, known)
	s.dispatch(m)
}

// retire passes the dead lane of a route to the reaper. The route waits until its messages have their results.
func (s *sender) retire(r *route) {
	r.lane.holds = true
	r.held++
	s.sent.Put(reaperNews{seal: r.lane})
	r.lane = nil
}

func (s *sender) learn(n laneNews) {
	if n.lane != nil {
		r := s.routes[n.lane.exchange]
		switch {
		case r == nil || r.lane != n.lane:
		case n.lane.channel.IsClosed():
			s.retire(r)
		default:
			s.giveUpLane(n.lane.exchange)
		}
	}
	if v := s.hindrance(); v.outcome != 0 {
		s.rejectUnsent(v)
	}
	switch {
	case n.ended != nil:
		s.laneEnded(n.ended)
		s.begin()
	case n.done != nil && len(n.done.messages) > 0:
		s.landed(n.done)
		s.begin()
	case n.done != nil:
		s.opened(n.done)
		s.begin()
	}
}

// laneEnded continues with the messages of a dead lane that leave again: in two flights, so that a message that is the
// cause is soon alone. If the cause concerns all messages of the exchange, none leaves again.
func (s *sender) laneEnded(l *lane) {
	if !l.shared {
		s.careful.lanes--
	}
	all, cause := l.resends, l.exception
	v := verdictOnExchange(cause)
	switch {
	case v.outcome != 0:
		s.giveUp(all, v)
		all = nil
	case l.holds && !l.shared && len(all) > 0:
		s.setSlow(s.routes[l.exchange], true) // the search takes its time
	}
	var flights []*job
	for half := (len(all) + 1) / 2; len(all) > 0; all = all[min(half, len(all)):] {
		flights = append(flights, &job{
			exchange: l.exchange, messages: all[:min(half, len(all))],
			again: true, guilty: !l.crowded, holds: l.holds, cause: cause,
		})
	}
	if r := s.routes[l.exchange]; l.holds {
		r.held += len(flights)
		s.release(l.exchange, v)
	}
	for _, j := range slices.Backward(flights) { // each goes before the others
		s.careful.add(j)
	}
}

// landed continues after a flight. Its exchange does not wait for late answers.
func (s *sender) landed(j *job) {
	s.careful.done(j, len(j.messages))
	if s.impersonates.Load() {
		s.rest = append(s.careful.withdraw(), s.rest...)
	}
	ends := s.careful.landed(&j.flight)
	if l := j.flight.lane; ends && j.holds && !j.flight.late {
		l.holds = true // until the reaper tells its end
	} else if j.holds {
		s.release(j.exchange, j.verdict)
	}
}

// release is called when a route has to wait for one thing less. After the last, it gets a lane, or its messages get
// the verdict.
func (s *sender) release(exchange string, v verdict) {
	r := s.routes[exchange]
	if v.outcome != 0 {
		r.stop = v
	}
	if r.held--; r.held > 0 {
		return
	}
	if r.stop.outcome != 0 {
		s.stop(exchange, r.stop)
		return
	}
	s.careful.add(&job{exchange: exchange, first: true})
}

// stop reports the messages that wait for a lane of the exchange.
func (s *sender) stop(exchange string, v verdict) {
	r := s.routes[exchange]
	s.setSlow(r, false)
	delete(s.routes, exchange)
	if v.wholeExchange || v.outcome == outbox.Rejected {
		s.remember(exchange, lookUp{rejectedAt: time.Now(), verdict: v})
	}
	for _, m := range r.waiting {
		s.sink.Deliver(v.result(m, false))
	}
}

// opened continues with the messages of an exchange after the job that opened its lane.
func (s *sender) opened(j *job) {
	r := s.routes[j.exchange]
	s.careful.done(j, len(r.waiting))
	if j.ready == nil {
		s.stop(j.exchange, j.verdict)
		return
	}
	s.setSlow(r, false)
	waiting := r.waiting
	r.lane, r.waiting = j.ready, nil
	s.remember(j.exchange, lookUp{found: true, wide: s.exchanges[j.exchange].wide})
	s.evict(j.exchange, laneLimit(int(s.connection.Config.ChannelMax)), func(*lane) bool { return true })
	s.evict(j.exchange, mostWide, s.wide)
	s.rest = append(waiting, s.rest...)
}

func (s *sender) countLanes(kind func(*lane) bool) (n int) {
	for _, r := range s.routes {
		if r.lane != nil && kind(r.lane) {
			n++
		}
	}
	return n
}

// evict gives up the lane that was unused for longest if there are too many of its kind. Its messages in flight still
// get their answers; then the reaper closes the channel.
func (s *sender) evict(except string, most int, kind func(*lane) bool) {
	if s.countLanes(kind) <= most {
		return
	}
	victim, oldest := "", (*route)(nil)
	for exchange, r := range s.routes {
		if r.lane != nil && kind(r.lane) && exchange != except && (oldest == nil || r.used < oldest.used) {
			victim, oldest = exchange, r
		}
	}
	s.giveUpLane(victim)
	s.remember(victim, lookUp{found: true})
}

// giveUpLane forgets an open lane. The next message to the exchange gets a new one.
func (s *sender) giveUpLane(exchange string) {
	s.sent.Put(reaperNews{seal: s.routes[exchange].lane})
	delete(s.routes, exchange)
}

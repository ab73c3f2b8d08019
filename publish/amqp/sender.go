package amqp

import (
	"slices"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish/wire"
)

// mostLanes bounds the open lanes, because each has a buffer for returns.
const mostLanes = 32

// spareChannels is how many channels a session needs besides its lanes.
const spareChannels = 8

// laneLimit is mostLanes, or less if the broker allows few channels.
func laneLimit(channelMax int) int {
	return max(1, min(mostLanes, channelMax-spareChannels))
}

// route is the way of messages to one exchange. Its lane is nil until a job has opened it; messages then wait in order.
type route struct {
	lane    *lane
	waiting []*outbox.Message
	// slow: the messages that wait have places; see careful.admit.
	slow bool
}

// laneNews is an event for the sender. Without a value it only wakes the sender.
type laneNews struct {
	// lane must not be used any more: its channel is closed, or a message on it timed out or was rejected.
	lane *lane
	// job is to be done. slow has met several bad messages, and done has ended.
	job, slow, done *job
}

// sender is the goroutine that takes messages and sends them. Only this goroutine uses its fields.
type sender struct {
	*session
	routes  map[string]*route
	careful *careful
	// batch was taken from in; rest is the unsent part of it.
	batch, rest []*outbox.Message
	news        []laneNews
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
		s.do(&job{exchange: p.exchange, opens: true, first: s.exists(p.exchange)})
	case r != nil && (!r.slow || s.careful.admit(m)):
		r.waiting = append(r.waiting, m)
	}
}

// exists reports whether the exchange existed at its last look-up.
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
		case j.opens:
			s.setSlow(s.routes[j.exchange], false)
			j.blind = j.exchange == "" || s.exchanges[j.exchange].unanswered
			if len(s.exchanges) >= mostMissing {
				clear(s.exchanges)
			}
			s.exchanges[j.exchange] = lookUp{unanswered: true}
		case !j.dead:
			s.careful.leave(j.messages[0].message)
		}
		s.careful.run(j)
	}
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
	if r.lane.channel.IsClosed() {
		s.retire(r)
		r.waiting = append(r.waiting, m)
		return
	}
	e := &entry{message: m, lane: r.lane, marked: p.marked, epoch: s.throttle.sent()}
	s.inFlight.Add(1)
	s.sent.Add(reaperNews{entry: e})
	if err := e.send(p, s.clock); err != nil {
		s.retire(r)
	}
	s.sent.Signal()
}

// retire passes the dead lane of a route to the reaper, which makes its messages a job. The route waits for the job.
func (s *sender) retire(r *route) {
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
			s.giveUpLane(n.lane.exchange, r)
		}
	}
	if v := s.hindrance(); v.outcome != 0 {
		s.rejectUnsent(v)
	}
	switch {
	case n.job != nil:
		s.do(n.job)
	case n.slow != nil:
		s.setSlow(s.routes[n.slow.exchange], true)
	case n.done != nil:
		s.done(n.done)
		s.begin()
	}
}

// done continues with the messages of an exchange after its job.
func (s *sender) done(j *job) {
	if !j.opens {
		s.careful.done(j, len(j.messages))
		return
	}
	r := s.routes[j.exchange]
	s.setSlow(r, false)
	waiting := r.waiting
	s.careful.done(j, len(j.messages)+len(waiting))
	r.lane, r.waiting = j.ready, nil
	if j.ready == nil {
		delete(s.routes, j.exchange)
		if j.verdict.outcome == outbox.Rejected {
			s.exchanges[j.exchange] = lookUp{rejectedAt: time.Now(), verdict: j.verdict}
		}
		for _, m := range waiting {
			s.sink.Deliver(j.verdict.result(m, false))
		}
		return
	}
	s.exchanges[j.exchange] = lookUp{found: true}
	s.evict(j.exchange)
	s.rest = append(waiting, s.rest...)
}

// evict gives up some other lane if there are too many. Its messages in flight still get their answers; then the reaper
// closes the channel.
func (s *sender) evict(except string) {
	open, victim := 0, ""
	for exchange, r := range s.routes {
		if r.lane != nil {
			open++
			if exchange != except {
				victim = exchange
			}
		}
	}
	if open > laneLimit(int(s.connection.Config.ChannelMax)) {
		s.giveUpLane(victim, s.routes[victim])
	}
}

// giveUpLane forgets an open lane. The next message to the exchange gets a new one.
func (s *sender) giveUpLane(exchange string, r *route) {
	s.sent.Put(reaperNews{seal: r.lane, evicted: true})
	delete(s.routes, exchange)
}

package publish

import (
	"slices"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// mostLanes bounds the open lanes; each holds a buffer for returns. The one that
// was idle for longest makes room.
const mostLanes = 32

// spareChannels are the channels a session needs beside its lanes.
const spareChannels = 8

// laneLimit is mostLanes, or less where the broker allows few channels.
func laneLimit(channelMax int) int {
	return max(1, min(mostLanes, channelMax-spareChannels))
}

// route is where the messages of one exchange go. Its lane is nil while the
// isolator looks at the exchange; messages then wait, in order.
type route struct {
	lane    *lane
	waiting []*outbox.Message
	usedAt  uint64
}

// laneNews is what the sender is told. Without a lane or an exchange it only wakes
// the sender.
type laneNews struct {
	openGate bool
	// reprobe: the message that was to be answered first was given back.
	reprobe bool
	// dead: the channel of this lane is closed.
	dead *lane
	// worn: this lane has carried too much that was never answered, or too much after it.
	worn *lane
	// exchange: the isolator is done with it. ready is its lane, or nil: then what
	// waits gets the verdict.
	exchange *string
	ready    *lane
	verdict  verdict
}

// target is where a message goes.
type target struct{ exchange, key string }

// gate is the half-open breaker: one message leaves, and the rest is held until
// the broker answered to it. After the session it says where that one went.
type gate struct {
	// avoid is where the last such message went without an answer. If only its queue
	// is out of order, one that goes elsewhere shows that the broker is not.
	avoid *target
	// graceOver: nothing goes elsewhere.
	graceOver bool
	chosen    *target
}

// graceForOthers is how long a gate waits for a message that goes elsewhere.
const graceForOthers = 100 * time.Millisecond

// sender is the goroutine that takes messages and sends them. All its fields are
// its own.
type sender struct {
	*session
	gate   *gate // nil when it is open
	probed bool  // one message went through it
	held   []*outbox.Message
	grace  <-chan time.Time // ends the wait for a message that goes elsewhere
	routes map[string]*route
	uses   uint64
	// batch was taken from in; rest is what of it is still to be sent.
	batch, rest []*outbox.Message
	news        []laneNews
	// answers were counted when stuck was set; stuck ends a pause without answers.
	answers int
	stuck   <-chan time.Time
}

func newSender(s *session, g *gate) *sender {
	return &sender{session: s, gate: g, routes: make(map[string]*route)}
}

func (s *sender) run() {
	for !s.over() {
		s.news = s.control.take(s.news)
		for _, n := range s.news {
			s.learn(n)
		}
		s.sendRest()
		select {
		case <-s.ended:
		case <-s.in.wake:
		case <-s.throttle.room:
		case <-s.stuck:
			s.endPause()
		case <-s.control.wake:
		case <-s.grace:
			s.gate.graceOver, s.grace = true, nil
			s.lastToTheEnd()
			s.release()
		}
	}
	s.giveBack("the connection was lost before the message was sent")
}

// sendRest sends what is there, as far as the throttle allows.
func (s *sender) sendRest() {
	for {
		if len(s.rest) == 0 {
			s.batch = s.in.take(s.batch)
			s.rest = s.batch
		}
		if len(s.rest) == 0 {
			s.stuck = nil
			return
		}
		n := len(s.rest)
		if !s.blocked.Load() {
			n = min(n, s.throttle.allowed())
		}
		if n == 0 {
			if s.stuck == nil {
				s.answers, s.stuck = s.throttle.answersSoFar(), time.After(stuckAfter)
			}
			return
		}
		s.stuck = nil
		s.acceptAll(s.rest[:n])
		s.rest = s.rest[n:]
	}
}

// endPause goes on where the broker answers next to nothing.
func (s *sender) endPause() {
	s.stuck = nil
	s.throttle.notAnswered(s.answers)
}

// acceptAll sends messages in as few writes as it takes.
func (s *sender) acceptAll(batch []*outbox.Message) {
	if len(batch) == 0 {
		return
	}
	s.socket.cork()
	for _, m := range batch {
		s.accept(m)
	}
	if err := s.socket.uncork(); err != nil {
		s.lose(err)
	}
}

// giveBack reports all that was not sent.
func (s *sender) giveBack(why string) {
	for _, r := range s.routes {
		for _, m := range r.waiting {
			s.deliver(m, outbox.NotSent, "", why)
		}
		r.waiting = nil
	}
	for _, m := range append(s.held, s.rest...) {
		s.deliver(m, outbox.NotSent, "", why)
	}
	s.held, s.rest = nil, nil
}

func (s *sender) accept(m *outbox.Message) {
	switch {
	case s.over():
		s.deliver(m, outbox.NotSent, "", "the connection was lost before the message was sent")
	case s.blocked.Load():
		s.deliver(m, outbox.NotSent, "", "the broker has blocked the connection")
	case s.gate != nil && !s.passes(m):
		s.held = append(s.held, m)
	default:
		s.dispatch(m)
	}
}

// passes tells whether the message may go through the gate.
func (s *sender) passes(m *outbox.Message) bool {
	if s.probed {
		return false
	}
	_, last := s.quarantine.holds(m)
	avoided := last || s.gate.avoid != nil && *s.gate.avoid == target{s.limits.exchangeOf(m), m.RoutingKey}
	if !avoided || s.gate.graceOver {
		return true
	}
	if s.grace == nil {
		s.grace = time.After(graceForOthers)
	}
	return false
}

// dispatch brings a message onto its way.
func (s *sender) dispatch(m *outbox.Message) {
	p, err := s.encode(m, m.MayBeKnown())
	if err != nil {
		s.sink.Deliver(impossible(m, err))
		return
	}
	held, last := s.quarantine.holds(m)
	if s.gate != nil {
		s.probed, s.grace = true, nil
		if !last { // or it is the message, and not where it goes
			s.gate.chosen = &target{p.exchange, p.key}
		}
	}
	if p.risky || held {
		s.jobs.put(job{messages: []suspect{{message: m}}, urgency: urgencyOf(held, last)})
		return
	}
	r := s.routes[p.exchange]
	switch {
	case r == nil:
		s.routes[p.exchange] = &route{}
		s.jobs.put(job{exchange: &p.exchange, opens: true, messages: []suspect{{message: m}}})
	case r.lane == nil:
		r.waiting = append(r.waiting, m)
	default:
		s.publish(r, m, p)
	}
}

func (s *sender) publish(r *route, m *outbox.Message, p parcel) {
	if s.inFlight.Load() >= int64(s.cfg.MaxInFlight) {
		s.deliver(m, outbox.NotSent, "", "more messages are in flight than were agreed")
		return
	}
	if r.lane.channel.IsClosed() {
		s.retire(r)
		r.waiting = append(r.waiting, m)
		return
	}
	s.uses++
	r.usedAt = s.uses
	e := &entry{message: m, lane: r.lane, marked: p.marked, epoch: s.throttle.sent()}
	s.inFlight.Add(1)
	s.sent.add(reaperNews{entry: e})
	if err := e.send(p, s.clock); err != nil {
		s.retire(r)
	}
	s.sent.signal()
}

// retire gives the dead lane of a route to the reaper, which hands what it carried
// to the isolator. The route waits until the isolator is done with the exchange.
func (s *sender) retire(r *route) {
	s.sent.put(reaperNews{seal: r.lane})
	r.lane = nil
}

func (s *sender) learn(n laneNews) {
	if n.openGate {
		s.gate, s.grace = nil, nil
		s.release()
	}
	if n.reprobe {
		s.probed = false
		s.release()
	}
	if n.dead != nil {
		if r := s.routes[n.dead.exchange]; r != nil && r.lane == n.dead {
			s.retire(r)
		}
	}
	if n.worn != nil {
		if r := s.routes[n.worn.exchange]; r != nil && r.lane == n.worn {
			s.giveUpLane(n.worn.exchange, r)
		}
	}
	if s.blocked.Load() {
		s.giveBack("the broker has blocked the connection")
	}
	if n.exchange == nil {
		return
	}
	r := s.routes[*n.exchange]
	s.uses++
	r.lane, r.usedAt = n.ready, s.uses
	waiting := r.waiting
	r.waiting = nil
	if n.ready == nil {
		delete(s.routes, *n.exchange)
		for _, m := range waiting {
			s.deliver(m, n.verdict.outcome, n.verdict.reason, n.verdict.detail)
		}
		return
	}
	s.evict()
	s.rest = append(waiting, s.rest...)
}

// release lets go what waited for the first answer.
func (s *sender) release() {
	s.rest = append(s.held, s.rest...)
	s.held = nil
}

// lastToTheEnd has any other message pass the gate before one that was alone when a connection
// ended.
func (s *sender) lastToTheEnd() {
	isLast := func(m *outbox.Message) bool {
		_, last := s.quarantine.holds(m)
		return last
	}
	last := slices.DeleteFunc(slices.Clone(s.held), func(m *outbox.Message) bool { return !isLast(m) })
	s.held = append(slices.DeleteFunc(s.held, isLast), last...)
}

// evict gives up the lane that was idle for longest where there are too many. What
// it has in flight still gets its answer; the reaper closes the channel after it.
func (s *sender) evict() {
	open := 0
	var name string
	var oldest *route
	for exchange, r := range s.routes {
		if r.lane == nil {
			continue
		}
		open++
		if oldest == nil || r.usedAt < oldest.usedAt {
			name, oldest = exchange, r
		}
	}
	if open > laneLimit(int(s.connection.Config.ChannelMax)) {
		s.giveUpLane(name, oldest)
	}
}

// giveUpLane forgets an open lane: the next message to the exchange gets another.
func (s *sender) giveUpLane(exchange string, r *route) {
	s.sent.put(reaperNews{seal: r.lane, evicted: true})
	delete(s.routes, exchange)
}

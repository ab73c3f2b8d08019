package amqp

import (
	"fmt"
	"maps"
	"slices"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

const (
	// mostLanes bounds the open lanes, and mostWide those of them that have room for the returns of all messages in
	// flight. The others have an eighth of it.
	mostLanes   = 256
	mostWide    = 24
	narrowShare = 8
	// spareChannels is how many channels a session needs besides its lanes in use; reserved are those for no lane.
	spareChannels = 8
	reserved      = 3
	// mostOpening is how many lanes are opened at the same time. A distant broker answers many calls in the time of
	// one.
	mostOpening = 16
)

// laneLimit is mostLanes, or less if the broker allows few channels.
func laneLimit(channelMax int) int { return max(1, min(mostLanes, (channelMax-spareChannels)*3/4)) }

// lane is one channel in confirm mode. It carries the messages of one route, so that an exception affects no other.
type lane struct {
	channel *amqp091.Channel
	route   *route
	// returns has room for most messages, and no more may be unanswered: the library drops a return that it cannot
	// deliver, and the message would look confirmed.
	returns  chan amqp091.Return
	returned *returned // nil until the first return
	most     int
	// closed receives at most one reason, and is then closed.
	closed     chan *amqp091.Error
	exception  *amqp091.Error // received from closed
	unanswered int
	timedOut   int      // messages without an answer in time
	sealed     bool     // nothing more is sent on it
	dead       []*entry // without an answer when the broker closed it
}

// reason returns why the broker closed the channel, or nil if it gave no reason.
func (l *lane) reason() *amqp091.Error {
	select {
	case e, ok := <-l.closed:
		if ok {
			l.exception = e
		}
	default:
	}
	return l.exception
}

// seal sends nothing more on the lane of a route. Its messages still get their answers; then the channel is closed.
func (s *session) seal(r *route) {
	if l := r.lane; l != nil {
		l.sealed, r.lane = true, nil
		s.closeSealed(l)
	}
}

// closeSealed closes the channel of a lane that is not used any more.
func (s *session) closeSealed(l *lane) {
	if !l.sealed || l.unanswered > 0 {
		return
	}
	l.sealed = false // once: its place is free only once
	s.helpers.Go(func() {
		_ = l.channel.Close()
		s.events.Put(happened{done: s.channelEnded})
	})
}

// channelEnded makes room for another lane.
func (s *session) channelEnded() {
	s.channels--
	s.openNext()
}

// replace gives a route another lane.
func (s *session) replace(r *route) {
	s.seal(r)
	s.advance(r)
}

// widen gives an exchange a lane with room for the returns of all messages in flight.
func (s *session) widen(r *route, one item) {
	known := s.exchanges[r.exchange]
	known.wide = true
	s.remember(r.exchange, known)
	r.waiting = append(r.waiting, one)
	s.replace(r)
}

// open queues a route that needs a lane. Exchanges that exist go first.
func (s *session) open(r *route) {
	r.opening = true
	if r.alone || !r.part && s.exists(r.exchange) {
		s.opening = slices.Insert(s.opening, 0, r)
	} else {
		s.opening = append(s.opening, r)
	}
	s.openNext()
}

func (s *session) openNext() {
	most := max(int(s.connection.Config.ChannelMax)-reserved, reserved)
	for len(s.opening) > 0 && s.openers < mostOpening && s.channels < most {
		r := s.opening[0]
		s.opening = s.opening[1:]
		s.openers++
		s.channels++
		s.openLane(r)
	}
}

// openLane opens the lane of a route. If its exchange never worked, it is looked up before.
func (s *session) openLane(r *route) {
	known := s.exchanges[r.exchange]
	o := &opener{
		exchange: r.exchange, asks: r.cause != nil, most: s.cfg.MaxInFlight,
		looksUp: !r.alone && !s.exists(r.exchange) && !known.unanswered,
	}
	if r.alone || r.part {
		o.most = max(r.size, 1)
	} else if !known.wide && s.countLanes(s.wide) >= mostWide {
		o.most = max(s.cfg.MaxInFlight/narrowShare, 1)
	}
	if o.looksUp {
		s.remember(r.exchange, lookUp{unanswered: true})
	}
	for i := range r.waiting { // they soon have an answer
		s.leavePlace(&r.waiting[i])
	}
	r.begun = true
	began := time.Now()
	s.do("open channel", func() error { return s.call(o) }, func(err error) {
		s.openers--
		r.opening, r.begun = false, false
		s.places.passed(time.Since(began)/mostOpening, len(r.waiting))
		if err != nil {
			s.lose(fmt.Errorf("open channel: %w", err))
			return
		}
		s.laneOpened(r, o)
		s.openNext()
	})
}

// laneOpened continues with the messages of a route.
func (s *session) laneOpened(r *route, o *opener) {
	if o.missing.outcome != 0 {
		s.channelEnded()
		s.hear()
		s.stop(r, o.missing)
		return
	}
	if cause := r.cause; cause != nil { // the service that could not answer answers others
		r.cause = nil
		v := exceptionVerdict(cause)
		if v.wholeExchange && !r.alone {
			r.lane = o.lane
			s.stop(r, v)
			return
		}
		if len(r.waiting) > 0 {
			first := r.waiting[0]
			r.waiting = r.waiting[1:]
			s.giveUp(first, v)
		}
	}
	r.lane, o.lane.route = o.lane, r
	if !r.alone && !r.part {
		if s.routes[r.exchange] != r { // it was given up meanwhile
			s.seal(r)
			return
		}
		known := s.exchanges[r.exchange]
		s.remember(r.exchange, lookUp{found: true, wide: known.wide, answered: known.answered})
		s.evict(r, laneLimit(int(s.connection.Config.ChannelMax)), func(*lane) bool { return true })
		s.evict(r, mostWide, s.wide)
	}
	s.advance(r)
}

// wide reports whether a lane has room for the returns of all messages in flight.
func (s *session) wide(l *lane) bool { return l.most >= s.cfg.MaxInFlight }

func (s *session) countLanes(kind func(*lane) bool) (n int) {
	for _, r := range s.routes {
		if r.lane != nil && kind(r.lane) {
			n++
		}
	}
	return n
}

// evict gives up the lane that was unused for longest if there are too many of its kind.
func (s *session) evict(except *route, most int, kind func(*lane) bool) {
	if s.countLanes(kind) <= most {
		return
	}
	var victim *route
	for _, r := range s.routes {
		if r.lane != nil && kind(r.lane) && r != except && (victim == nil || r.used < victim.used) {
			victim = r
		}
	}
	s.remember(victim.exchange, lookUp{found: true, answered: s.exchanges[victim.exchange].answered})
	s.replace(victim)
}

const (
	// mostExchanges bounds the number of remembered exchanges.
	mostExchanges = 4096
	// missingFor is how long a verdict on an exchange applies to all of its messages.
	missingFor = time.Second
)

// lookUp is what is known of an exchange.
type lookUp struct {
	// found: the exchange existed, or the answer said nothing about it. It is not looked up again until it is missing.
	found bool
	// wide: it once needed a lane with much room.
	wide bool
	// unanswered: the connection ended before the answer, perhaps because of the look-up. The next lane is opened
	// without one; then the answers to the messages count.
	unanswered bool
	// answered is the number of the last connection on which a message was answered.
	answered int
	// The exchange rejects every message.
	rejectedAt time.Time
	verdict    verdict
}

// exists reports whether the exchange existed when it was last used.
func (s *session) exists(exchange string) bool { return exchange == "" || s.exchanges[exchange].found }

// remember records what is known of an exchange. Those that exist are forgotten last.
func (s *session) remember(exchange string, known lookUp) {
	if _, again := s.exchanges[exchange]; !again && len(s.exchanges) >= mostExchanges {
		maps.DeleteFunc(s.exchanges, func(_ string, l lookUp) bool { return !l.found })
		if len(s.exchanges) >= mostExchanges {
			clear(s.exchanges)
		}
	}
	s.exchanges[exchange] = known
}

package amqp

import (
	"slices"
	"sync"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
)

const (
	// mostOpening is how many lanes are opened at the same time, mostFlying how many flights wait for their answers. A
	// distant broker answers many calls in the time of one. mostFlights bounds the lanes of flights: with those that
	// wait for a late answer, and idle ones.
	mostOpening = 16
	mostFlying  = 8
	mostFlights = 64
	// slowShare of the messages in flight may wait for a job to begin. It is less than the half of the window that must
	// be free before a full window takes streamed rows again. slowBytes is the same share of the relay's bytes.
	slowShare = 3.0 / 8
	slowBytes = 12 << 20
	// quickly is a wait that delays nobody much: messages that wait less need no share. firstPace is a guess.
	quickly   = 200 * time.Millisecond
	firstPace = time.Millisecond
	// soonest and latest bound the time after which a message that finds no place may come again.
	soonest = 100 * time.Millisecond
	latest  = 30 * time.Second
)

// job is work for which the sender must not wait: to open the lane of an exchange, or a flight. It runs in its own
// goroutine.
type job struct {
	exchange string
	// messages are those of a flight; without any, the job opens the lane.
	messages []resend
	// most is how many messages the lane has room for.
	most int
	// first: the job begins before the others, because the exchange existed before. blind: it looks up nothing.
	first, blind bool
	// again: the messages were in flight on a lane that died for this cause. guilty: there was only this one. holds:
	// the exchange waits for them.
	again, guilty, holds bool
	cause                *amqp091.Error
	// suspect: connections may have ended because of the message. No other flight is under way meanwhile.
	suspect bool

	began  time.Time
	wait   time.Duration // for the answers
	flight flight
	// ready is the new lane; nil: the messages that wait get the verdict.
	ready   *lane
	verdict verdict
}

// careful has the jobs of a session. It belongs to the sender.
type careful struct {
	*session
	running sync.WaitGroup
	// opening wait for a free opener, flights and last for a free flight. Messages that were alone when a connection
	// ended are last.
	opening, flights, last []*job
	openers, flying        int // busy ones
	mostOpen, mostFly      int
	idle                   []*lane
	// lanes counts those of flights, also those with late answers.
	lanes, mostLanes int
	wait             time.Duration // for the answers to the next flight

	// messages and bytes wait for a job to begin, or for a slow one to end.
	messages, bytes, most int
	// pace is how long a message takes, judging by the last jobs. next is when the last message that found no place
	// may come again.
	pace time.Duration
	next time.Time
}

func newCareful(s *session) *careful {
	c := &careful{session: s, pace: firstPace, wait: longestWait, most: max(int(slowShare*float64(s.maxInFlight)), 1)}
	if s.connection != nil {
		spare := max((int(s.connection.Config.ChannelMax)-spareChannels)/4, 1)
		c.mostOpen, c.mostFly = min(spare, mostOpening), min(spare, mostFlying)
		c.mostLanes = min(spare, mostFlights)
	}
	return c
}

// admit takes a place for a message that must wait, or gives it back to the relay. It then stays in the table, so that
// slow work leaves room for fast work.
func (c *careful) admit(m *outbox.Message) bool {
	quick := c.messages == 0 || time.Duration(c.messages)*c.pace < quickly
	if !quick && (c.messages >= c.most || c.bytes+m.Size() > slowBytes) {
		c.sink.Deliver(outbox.Result{
			Message: m, Outcome: outbox.NotSent, RetryIn: c.later(time.Now()),
			Detail: "too many messages wait for a look-up of their exchange, or to be sent alone",
		})
		return false
	}
	c.messages++
	c.bytes += m.Size()
	return true
}

// leave frees the place of a message.
func (c *careful) leave(m *outbox.Message) {
	c.messages--
	c.bytes -= m.Size()
}

// later returns when a message may come again. Each one gets a time of its own, at the pace of the jobs.
func (c *careful) later(now time.Time) time.Duration {
	wait := max(c.next.Sub(now), soonest) + c.pace
	wait = min(wait, latest)
	c.next = now.Add(wait)
	return wait
}

// add queues a job. Each of its messages has a place, unless they leave again.
func (c *careful) add(j *job) {
	switch {
	case len(j.messages) == 0 && j.first:
		c.opening = slices.Insert(c.opening, 0, j)
	case len(j.messages) == 0:
		c.opening = append(c.opening, j)
	case j.again:
		c.flights = slices.Insert(c.flights, 0, j)
	case c.suspects.Of(j.messages[0].message).Alone > 0:
		c.last = append(c.last, j)
		slices.SortStableFunc(c.last, func(a, b *job) int {
			return c.suspects.Compare(a.messages[0].message, b.messages[0].message)
		})
	default:
		c.flights = append(c.flights, j)
	}
}

// begin removes and returns a job that may begin; nil: none.
func (c *careful) begin() *job {
	if len(c.opening) > 0 && c.openers < c.mostOpen {
		c.openers++
		return pop(&c.opening)
	}
	queue := &c.flights
	if len(*queue) == 0 {
		queue = &c.last
	}
	if len(*queue) == 0 || c.flying+c.weight((*queue)[0]) > c.mostFly {
		return nil
	}
	// An idle lane may have room for a single message only.
	idle := len(c.idle) > 0
	switch single := len((*queue)[0].messages) == 1; {
	case idle && single:
	case c.lanes < c.mostLanes:
		c.lanes++
		idle = false
	case idle:
		c.sent.Put(reaperNews{seal: pop(&c.idle)})
		return nil
	default:
		return nil
	}
	j := pop(queue)
	c.flying += c.weight(j)
	j.wait, j.most = c.wait, len(j.messages)
	if idle {
		j.flight.lane = pop(&c.idle)
		j.flight.lane.exchange = j.exchange
	}
	return j
}

// pop removes and returns the first of a queue; nil: it is empty.
func pop[T any](queue *[]*T) (first *T) {
	if len(*queue) > 0 {
		first, (*queue)[0] = (*queue)[0], nil
		*queue = (*queue)[1:]
	}
	return first
}

// weight is the part of mostFly that a flight takes.
func (c *careful) weight(j *job) int {
	if j.suspect {
		return c.mostFly
	}
	return 1
}

// run runs a job in its own goroutine, which reports its end to the sender.
func (c *careful) run(j *job) {
	j.began = time.Now()
	c.running.Go(func() {
		if len(j.messages) > 0 {
			c.fly(j)
		} else if j.verdict = c.hindrance(); j.verdict.outcome == 0 {
			j.ready, j.verdict = c.openLane(j, !j.blind)
		}
		c.control.Put(laneNews{done: j})
	})
}

// done records the end of a job. Messages is how many have waited for it.
func (c *careful) done(j *job, messages int) {
	most := c.mostOpen
	if len(j.messages) == 0 {
		c.openers--
	} else {
		most = c.mostFly
		c.flying -= c.weight(j)
	}
	pace := time.Since(j.began) / time.Duration(most*max(messages, 1))
	c.pace += (pace - c.pace) / 8
}

// landed decides what becomes of the lane of a flight. It reports whether the reaper will tell its end.
func (c *careful) landed(f *flight) (ends bool) {
	switch {
	case f.lane == nil:
		c.lanes--
		return false
	case !f.late && !f.lane.channel.IsClosed():
		c.wait = min(c.wait*2, longestWait)
		c.idle = append(c.idle, f.lane)
		return false
	case f.late:
		c.wait = min(max(c.wait/2, shortestWait, c.throttle.manyTimesThere()), longestWait)
	}
	c.sent.Put(reaperNews{seal: f.lane})
	return true
}

// withdraw removes and returns the risky messages that wait for a flight. They may be ordinary by now.
func (c *careful) withdraw() (risky []*outbox.Message) {
	c.flights = slices.DeleteFunc(c.flights, func(j *job) bool {
		if j.again || j.suspect {
			return false
		}
		c.leave(j.messages[0].message)
		risky = append(risky, j.messages[0].message)
		return true
	})
	return risky
}

// finish reports the messages of all jobs, after the session is over.
func (c *careful) finish() {
	c.running.Wait()
	for _, j := range append(c.flights, c.last...) {
		c.giveUp(j.messages, lostBeforeSent())
	}
}

package amqp

import (
	"slices"
	"sync"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
)

const (
	// mostOpening is how many lanes are opened at the same time, mostAlone how many messages are alone on their
	// channels. A distant broker answers many calls in the time of one.
	mostOpening = 16
	mostAlone   = 8
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

// job is work for which the sender must not wait: messages to send alone, one at a time, and then possibly a lane to
// open. It runs in its own goroutine.
type job struct {
	exchange string
	opens    bool // the exchange waits for a lane
	messages []resend
	// first: the job begins before the others, because the exchange existed before. blind: it looks up nothing.
	first, blind bool
	// dead: the messages were in flight on a lane that died, for this cause.
	dead  bool
	cause *amqp091.Error
	// suspect: connections may have ended because of the message. No other job sends meanwhile.
	suspect bool

	began time.Time
	by    *isolation // only with messages
	// ready is the new lane; nil: the messages that wait get the verdict.
	ready   *lane
	verdict verdict
}

// careful has the jobs of a session. It belongs to the sender, except for the methods of a job.
type careful struct {
	*session
	running sync.WaitGroup
	// opening wait for a free opener, alone and last for a free isolation. Messages that were alone when a connection
	// ended are last.
	opening, alone, last []*job
	openers, senders     int // busy ones
	mostOpen, mostSend   int
	idle                 []*isolation

	// messages and bytes wait for a job to begin, or for a slow one to end.
	messages, bytes, most int
	// pace is how long a message takes, judging by the last jobs. next is when the last message that found no place
	// may come again.
	pace time.Duration
	next time.Time
}

func newCareful(s *session) *careful {
	c := &careful{session: s, pace: firstPace, most: max(int(slowShare*float64(s.maxInFlight)), 1)}
	if s.connection != nil {
		channels := int(s.connection.Config.ChannelMax)
		spare := (channels - laneLimit(channels) - spareChannels) / 3
		c.mostOpen, c.mostSend = min(max(spare, 1), mostOpening), min(max(spare, 1), mostAlone)
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

// add queues a job. Each of its messages has a place, unless the lane is dead.
func (c *careful) add(j *job) {
	switch {
	case len(j.messages) == 0 && (j.first || j.dead):
		c.opening = slices.Insert(c.opening, 0, j)
	case len(j.messages) == 0:
		c.opening = append(c.opening, j)
	case j.dead:
		c.alone = slices.Insert(c.alone, 0, j)
	case c.suspects.Of(j.messages[0].message).Alone > 0:
		c.last = append(c.last, j)
		slices.SortStableFunc(c.last, func(a, b *job) int {
			return c.suspects.Compare(a.messages[0].message, b.messages[0].message)
		})
	default:
		c.alone = append(c.alone, j)
	}
}

// begin removes and returns a job that may begin; nil: none.
func (c *careful) begin() *job {
	if len(c.opening) > 0 && c.openers < c.mostOpen {
		c.openers++
		return pop(&c.opening)
	}
	queue := &c.alone
	if len(*queue) == 0 {
		queue = &c.last
	}
	if len(*queue) == 0 || c.senders+c.weight((*queue)[0]) > c.mostSend {
		return nil
	}
	j := pop(queue)
	c.senders += c.weight(j)
	if j.by = pop(&c.idle); j.by == nil {
		j.by = newIsolation(c.session)
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

// weight is the part of mostSend that a job takes.
func (c *careful) weight(j *job) int {
	if j.suspect {
		return c.mostSend
	}
	return 1
}

// run runs a job in its own goroutine, which reports its end to the sender.
func (c *careful) run(j *job) {
	j.began = time.Now()
	c.running.Go(func() {
		j.do(c.session)
		c.control.Put(laneNews{done: j})
	})
}

// done records the end of a job. Messages is how many have waited for it.
func (c *careful) done(j *job, messages int) {
	most := c.mostOpen
	if j.by == nil {
		c.openers--
	} else {
		c.senders -= c.weight(j)
		c.idle = append(c.idle, j.by)
		most = c.mostSend
	}
	pace := time.Since(j.began) / time.Duration(most*max(messages, 1))
	c.pace += (pace - c.pace) / 8
}

// finish reports the messages of all jobs, after the session is over.
func (c *careful) finish() {
	c.running.Wait()
	for _, j := range append(c.alone, c.last...) {
		c.giveUpAll(j.messages)
	}
}

// do delivers a result for each message of the job, or leaves that to the reaper.
func (j *job) do(s *session) {
	stop, troubles := verdict{}, 0
	if exchangeForbidden(j.cause) {
		stop = exceptionVerdict(j.cause)
	}
	for _, m := range j.messages {
		if stop.outcome == 0 {
			stop = s.hindrance()
		}
		if stop.outcome != 0 {
			s.giveUp(m, stop)
			continue
		}
		v := j.by.send(m, j.suspect)
		if v.reason == outbox.ReasonNoExchange || v.wholeExchange {
			stop = v
		}
		if j.by.troubled() {
			if troubles++; troubles == 2 && j.opens {
				s.control.Put(laneNews{slow: j})
			}
		}
	}
	if j.opens && stop.outcome == 0 {
		j.ready, stop = s.openLane(j.exchange, true, !j.blind)
	}
	j.verdict = stop
}

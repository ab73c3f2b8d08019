package amqp

import (
	"slices"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// job is work for the isolator: messages to send alone, one at a time, and then possibly a lane to open.
type job struct {
	exchange *string // nil: several exchanges
	opens    bool    // the sender waits for the lane of the exchange
	cause    *amqp091.Error
	messages []resend
	urgency  urgency
}

// urgency orders the jobs: messages that may end the connection go last.
type urgency int

const (
	opensLane  urgency = iota // a route waits for its lane
	sendsAlone                // risky, or in flight when the broker ended a connection
	sendsLast                 // alone when the broker ended a connection
	urgencies  = iota
)

// isolator is the goroutine that makes the calls for which the sender must not wait: it looks up exchanges, opens lanes
// and sends messages alone. Only this goroutine uses its fields.
type isolator struct {
	*session
	exchanges exchanges
	isolation isolation
	// waiting are the jobs that were taken, by urgency.
	waiting [urgencies][]job
}

func newIsolator(s *session) *isolator {
	return &isolator{session: s, exchanges: newExchanges(s.link), isolation: newIsolation(s)}
}

func (i *isolator) run() {
	for !i.over() {
		for _, j := range i.jobs.Take(nil) {
			i.add(j)
		}
		if j, some := i.next(); some {
			i.do(j)
			continue
		}
		select {
		case <-i.ended:
		case <-i.jobs.Wake():
		}
	}
	for j, some := i.next(); some; j, some = i.next() {
		i.do(j) // nothing is sent any more
	}
}

func (i *isolator) add(j job) {
	i.waiting[j.urgency] = append(i.waiting[j.urgency], j)
	if j.urgency == sendsLast {
		slices.SortStableFunc(i.waiting[sendsLast], func(a, b job) int {
			return i.suspects.Compare(a.messages[0].message, b.messages[0].message)
		})
	}
}

// next removes and returns the most urgent job.
func (i *isolator) next() (j job, some bool) {
	for u, jobs := range i.waiting {
		if len(jobs) > 0 {
			j = jobs[0]
			jobs[0] = job{} // it holds a payload
			i.waiting[u] = jobs[1:]
			return j, true
		}
	}
	return job{}, false
}

// do delivers a result for each message of the job, or leaves that to the reaper.
func (i *isolator) do(j job) {
	stop := verdict{}
	if j.exchange != nil {
		stop = i.exchanges.examine(*j.exchange, j.cause)
	}
	for _, m := range j.messages {
		if stop.outcome == 0 {
			stop = i.isolation.hindrance()
		}
		if stop.outcome != 0 {
			i.isolation.giveUp(m, stop)
			continue
		}
		v := i.isolation.send(m)
		if j.exchange != nil && (v.reason == outbox.ReasonNoExchange || v.wholeExchange) {
			stop = v
		}
	}
	if j.opens {
		i.tellSender(*j.exchange, stop)
	}
}

// tellSender ends the sender's wait for an exchange, with a lane or with a verdict.
func (i *isolator) tellSender(exchange string, stop verdict) {
	news := laneNews{exchange: &exchange, verdict: stop}
	if stop.outcome == 0 {
		var err error
		if news.ready, err = i.openLane(exchange, true, i.maxInFlight); err != nil {
			news.verdict = lostBeforeSent()
			i.lose(err)
		}
	}
	i.control.Put(news)
}

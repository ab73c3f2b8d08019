package publish

import (
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// job is work for the isolator: messages to send alone, one after the other, and
// then, if a route waits for it, the lane to open.
type job struct {
	exchange *string // nil: the messages go to several
	opens    bool    // the sender waits for news of the exchange
	cause    *amqp.Error
	messages []resend
	urgency  urgency
}

// urgency orders the jobs: what may end the connection after all goes last.
type urgency int

const (
	opensLane  urgency = iota // a route waits for its lane
	sendsAlone                // risky, or in flight when the broker ended a connection
	sendsLast                 // alone when it did
	urgencies  = iota
)

// isolator is the goroutine that opens the lanes, and sends messages alone: what killed
// a lane must be among its messages, and sent alone it shows. It looks each exchange up
// before it opens a lane, so that a missing one harms nothing in flight. All its fields
// are its own.
type isolator struct {
	*session
	lane *lane // the isolation lane, nil until it is needed
	// owes: a message on that lane has no answer yet.
	owes bool
	// wait is for the next answer; between shortestWait and longestWait.
	wait time.Duration
	// mostLeft bounds the isolation lanes that were left to a message without an answer.
	mostLeft int64
	// missing exchanges did not exist when they were last looked up.
	missing map[string]refusal
}

type refusal struct {
	at      time.Time
	verdict verdict
}

const (
	// mostMissing bounds the memory of exchanges.
	mostMissing = 4096
	// missingFor is how long an exchange is taken to be missing still.
	missingFor = time.Second
	// The wait for the answer to a message sent alone. An exception comes at once; a
	// confirm may take longer, and then the reaper waits for it. Each wait in vain
	// halves the next one: there may be many messages for a queue that answers nothing.
	longestWait  = 500 * time.Millisecond
	shortestWait = 50 * time.Millisecond
)

func newIsolator(s *session) *isolator {
	return &isolator{
		session: s, wait: longestWait, missing: make(map[string]refusal),
		mostLeft: leftLimit(int(s.connection.Config.ChannelMax)),
	}
}

// leftLimit leaves the lanes, and what a session needs beside them, their channels.
func leftLimit(channelMax int) int64 {
	const most = 4
	return int64(min(max(channelMax-laneLimit(channelMax)-spareChannels, 0), most))
}

func (i *isolator) run() {
	var waiting [urgencies][]job
	next := func() (job, bool) {
		for u, jobs := range waiting {
			if len(jobs) > 0 {
				j := jobs[0]
				jobs[0] = job{} // it holds a payload
				waiting[u] = jobs[1:]
				return j, true
			}
		}
		return job{}, false
	}
	for !i.over() {
		for _, j := range i.jobs.take(nil) {
			waiting[j.urgency] = append(waiting[j.urgency], j)
		}
		if j, some := next(); some {
			i.do(j)
			continue
		}
		select {
		case <-i.ended:
		case <-i.jobs.wake:
		}
	}
	for j, some := next(); some; j, some = next() {
		i.do(j) // which finds that nothing is sent any more
	}
}

// do delivers a result for each message of the job, or has the reaper do it.
func (i *isolator) do(j job) {
	stop := verdict{}
	if j.exchange != nil {
		stop = i.examine(*j.exchange, j.cause)
	}
	for _, m := range j.messages {
		if stop.outcome == 0 {
			stop = i.hindrance()
		}
		if stop.outcome != 0 {
			i.giveUp(m, stop)
			continue
		}
		if v := i.sendAlone(m); j.exchange != nil && (v.reason == outbox.ReasonNoExchange || v.wholeExchange) {
			stop = v
		}
	}
	if j.opens {
		i.tellSender(*j.exchange, stop)
	}
}

// examine says whether the exchange is there and may be written to. A verdict
// without outcome means yes, until more is known.
func (i *isolator) examine(exchange string, cause *amqp.Error) verdict {
	if exchangeForbidden(cause) {
		return exceptionVerdict(cause)
	}
	if exchange == "" {
		return verdict{}
	}
	if r, ok := i.missing[exchange]; ok && time.Since(r.at) < missingFor {
		return r.verdict
	}
	return i.ask(exchange)
}

// ask declares the exchange passively, on a channel of its own: the broker closes
// it if there is no such exchange.
func (i *isolator) ask(exchange string) verdict {
	err := i.limited("look up exchange", func() error {
		channel, err := i.connection.Channel()
		if err != nil {
			return err
		}
		if err := channel.ExchangeDeclarePassive(exchange, amqp.ExchangeDirect, true, false, false, false, nil); err != nil {
			return err
		}
		return channel.Close()
	})
	var exception *amqp.Error
	switch {
	case err == nil:
		delete(i.missing, exchange)
		return verdict{}
	case !i.connection.IsClosed() && errors.As(err, &exception) && exception.Server:
		v := exceptionVerdict(exception)
		if len(i.missing) >= mostMissing {
			clear(i.missing)
		}
		i.missing[exchange] = refusal{at: time.Now(), verdict: v}
		i.tellFirstAnswer()
		return v
	}
	i.lose(fmt.Errorf("look up exchange: %w", err))
	return verdict{outcome: outbox.NotSent, detail: "the connection was lost before the message was sent"}
}

// hindrance is why nothing can be sent at the moment; without outcome, nothing is.
func (i *isolator) hindrance() verdict {
	switch {
	case i.over():
		return verdict{outcome: outbox.NotSent, detail: "the connection was lost before the message was sent"}
	case i.blocked.Load():
		return verdict{outcome: outbox.NotSent, detail: "the broker has blocked the connection"}
	}
	return verdict{}
}

// giveUp reports a message that is not sent (again). One that may have reached the
// broker before is Unknown in any case, unless the whole exchange is out of
// bounds: as Unknown it would come back for ever. Its retry is marked all the same.
func (i *isolator) giveUp(s resend, v verdict) {
	if s.sent && !v.wholeExchange {
		v.outcome, v.reason = outbox.Unknown, ""
	}
	i.sink.Deliver(outbox.Result{Message: s.message, Outcome: v.outcome, Reason: v.reason, Detail: v.detail, MaybeSent: s.sent})
}

// sendAlone sends one message and waits a while for its answer; then the reaper alone
// waits for it. Without an answer the verdict is empty.
func (i *isolator) sendAlone(s resend) verdict {
	p, err := i.encode(s.message, s.sent || s.message.MayBeKnown())
	if err != nil {
		result := impossible(s.message, err)
		result.MaybeSent = s.sent
		i.sink.Deliver(result)
		return verdict{}
	}
	if err := i.open(); err != nil {
		i.lose(err)
		stop := verdict{outcome: outbox.NotSent, detail: "the connection was lost before the message was sent"}
		i.giveUp(s, stop)
		return stop
	}
	e := &entry{
		message: s.message, lane: i.lane, resent: s.sent, marked: p.marked,
		settled: make(chan struct{}),
	}
	e.awaited.Store(true)
	i.inFlight.Add(1)
	i.sent.add(reaperNews{entry: e})
	_ = e.send(p, i.clock) // the reaper judges
	i.sent.signal()
	longest := min(longestWait, i.cfg.SendTimeout/4)
	timer := time.NewTimer(min(i.wait, longest))
	defer timer.Stop()
	select {
	case <-e.settled:
		i.owes = i.owes || e.verdict.outcome == outbox.Unknown
		i.wait = min(i.wait*2, longest)
		return e.verdict
	case <-timer.C:
		e.awaited.Store(false)
		i.alone.remove(s.message) // the connection is still there
		i.owes = true
		i.wait = min(max(i.wait/2, shortestWait, i.throttle.manyTimesThere()), longest)
	case <-i.ended:
	}
	return verdict{}
}

// open makes sure that there is an isolation lane. A message that has no answer yet may still make the
// broker close the channel, so it keeps its lane. If many do they share one: an exception on it is
// charged to nobody (see reaper.settle).
func (i *isolator) open() error {
	if i.lane != nil && !i.lane.channel.IsClosed() {
		if !i.owes || i.left.Load() >= i.mostLeft {
			return nil
		}
		i.left.Add(1)
		i.sent.put(reaperNews{seal: i.lane, evicted: true})
	}
	i.owes = false
	return i.limited("open channel", func() (err error) {
		i.lane, err = openLane(i.connection, "", false, i.cfg.MaxInFlight+returnSlack)
		return err
	})
}

// tellSender ends the wait for an exchange: with a lane, or with what is wrong.
func (i *isolator) tellSender(exchange string, stop verdict) {
	news := laneNews{exchange: &exchange, verdict: stop}
	if stop.outcome == 0 {
		err := i.limited("open channel", func() (err error) {
			news.ready, err = openLane(i.connection, exchange, true, i.cfg.MaxInFlight+returnSlack)
			return err
		})
		if err != nil {
			news.ready = nil
			news.verdict = verdict{outcome: outbox.NotSent, detail: "the connection was lost before the message was sent"}
			i.lose(err)
		}
	}
	i.control.put(news)
}

// returnSlack is the room for returns beyond what can be in flight.
const returnSlack = 16

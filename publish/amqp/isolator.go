package amqp

import (
	"errors"
	"fmt"
	"slices"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish/wire"
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

// isolator is the goroutine that opens lanes and sends messages alone. If a lane died, one of its messages is the
// cause, and sending each alone shows which one. The isolator looks an exchange up before it opens its lane, so that a
// missing exchange harms no messages in flight. Only this goroutine uses its fields.
type isolator struct {
	*session
	lane *lane // the isolation lane; nil until needed
	// hasUnanswered: a message on that lane is unanswered.
	hasUnanswered bool
	// wait is the wait for the next answer, between shortestWait and longestWait.
	wait time.Duration
	// mostLeft bounds the isolation lanes kept for unanswered messages.
	mostLeft int64
	// missing are exchanges that did not exist at the last look-up.
	missing map[string]missingExchange
}

type missingExchange struct {
	at      time.Time
	verdict verdict
}

const (
	// mostMissing bounds the number of remembered exchanges.
	mostMissing = 4096
	// missingFor is how long an exchange counts as missing.
	missingFor = time.Second
	// The wait for the answer to a message sent alone. An exception comes at once. A confirm may take longer; then the
	// reaper waits for it. Each wait without an answer halves the next one, because many messages may be for a queue
	// that never answers.
	longestWait  = 500 * time.Millisecond
	shortestWait = 50 * time.Millisecond
)

func newIsolator(s *session) *isolator {
	return &isolator{
		session: s, wait: longestWait, missing: make(map[string]missingExchange),
		mostLeft: leftLimit(int(s.connection.Config.ChannelMax)),
	}
}

// leftLimit leaves enough channels for the lanes, and for the other channels of a session.
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
		for _, j := range i.jobs.Take(nil) {
			waiting[j.urgency] = append(waiting[j.urgency], j)
			if j.urgency == sendsLast {
				slices.SortStableFunc(waiting[sendsLast], func(a, b job) int {
					return i.suspects.Compare(a.messages[0].message, b.messages[0].message)
				})
			}
		}
		if j, some := next(); some {
			i.do(j)
			continue
		}
		select {
		case <-i.ended:
		case <-i.jobs.Wake():
		}
	}
	for j, some := next(); some; j, some = next() {
		i.do(j) // nothing is sent any more
	}
}

// do delivers a result for each message of the job, or leaves that to the reaper.
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

// examine checks whether the exchange exists and may be written to. A verdict without an outcome means yes, or
// unknown.
func (i *isolator) examine(exchange string, cause *amqp091.Error) verdict {
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

// ask declares the exchange passively on its own channel, because the broker closes the channel if the exchange does
// not exist.
func (i *isolator) ask(exchange string) verdict {
	err := i.limited("look up exchange", func() error {
		channel, err := i.connection.Channel()
		if err != nil {
			return err
		}
		err = channel.ExchangeDeclarePassive(exchange, amqp091.ExchangeDirect, true, false, false, false, nil)
		if err != nil {
			return err
		}
		return channel.Close()
	})
	var exception *amqp091.Error
	switch {
	case err == nil:
		delete(i.missing, exchange)
		return verdict{}
	case !i.connection.IsClosed() && errors.As(err, &exception) && exception.Server:
		v := exceptionVerdict(exception)
		if len(i.missing) >= mostMissing {
			clear(i.missing)
		}
		i.missing[exchange] = missingExchange{at: time.Now(), verdict: v}
		i.tellFirstAnswer()
		return v
	}
	i.lose(fmt.Errorf("look up exchange: %w", err))
	return lostBeforeSent()
}

// hindrance returns why nothing can be sent now; without an outcome, sending is possible.
func (i *isolator) hindrance() verdict {
	switch {
	case i.over():
		return lostBeforeSent()
	case i.blocked.Load():
		return verdict{outcome: outbox.NotSent, detail: "RabbitMQ has blocked the connection"}
	}
	return verdict{}
}

// giveUp reports a message that is not sent (again). If it may have reached the broker before, it is Unknown, so that
// its retry is marked. The exception is wholeExchange: as Unknown, the message would be sent again for ever.
func (i *isolator) giveUp(s resend, v verdict) {
	if s.sent && !v.wholeExchange {
		v.outcome, v.reason = outbox.Unknown, ""
	}
	i.sink.Deliver(v.result(s.message, s.sent))
}

// sendAlone sends one message and waits for its answer for a while; after that, only the reaper waits. Without an
// answer the verdict is empty.
func (i *isolator) sendAlone(s resend) verdict {
	p, err := i.encode(s.message, s.sent || s.message.MayBeKnown())
	if err != nil {
		result := wire.Impossible(s.message, err)
		result.MaybeSent = s.sent
		i.sink.Deliver(result)
		return verdict{}
	}
	if err = i.prove(s.message); err == nil {
		err = i.open()
	}
	if err != nil {
		i.lose(err)
		stop := lostBeforeSent()
		i.giveUp(s, stop)
		return stop
	}
	e := &entry{
		message: s.message, lane: i.lane, resent: s.sent, marked: p.Marked,
		settled: make(chan struct{}),
	}
	e.awaited.Store(true)
	i.inFlight.Add(1)
	i.sent.Add(reaperNews{entry: e})
	_ = e.send(p, i.clock) // the reaper handles the error
	i.sent.Signal()
	longest := min(longestWait, i.sendTimeout/4)
	timer := time.NewTimer(min(i.wait, longest))
	defer timer.Stop()
	select {
	case <-e.settled:
		i.hasUnanswered = i.hasUnanswered || e.verdict.outcome == outbox.Unknown
		i.wait = min(i.wait*2, longest)
		return e.verdict
	case <-timer.C:
		e.awaited.Store(false)
		i.suspects.Clear(s.message) // the connection still exists
		i.hasUnanswered = true
		i.wait = min(max(i.wait/2, shortestWait, i.throttle.manyTimesThere()), longest)
	case <-i.ended:
	}
	return verdict{}
}

// open opens an isolation lane if needed. A lane with an unanswered message is not used again, because that message may
// still make the broker close the channel. If many lanes are left this way, messages share one, and an exception on it
// is charged to none (see reaper.settle).
func (i *isolator) open() error {
	if i.lane != nil && !i.lane.channel.IsClosed() {
		if !i.hasUnanswered || i.left.Load() >= i.mostLeft {
			return nil
		}
		i.left.Add(1)
		i.sent.Put(reaperNews{seal: i.lane, evicted: true})
	}
	i.hasUnanswered = false
	return i.limited("open channel", func() (err error) {
		i.lane, err = openLane(i.connection, "", false, i.maxInFlight+returnSlack)
		return err
	})
}

// tellSender ends the sender's wait for an exchange, with a lane or with a verdict.
func (i *isolator) tellSender(exchange string, stop verdict) {
	news := laneNews{exchange: &exchange, verdict: stop}
	if stop.outcome == 0 {
		err := i.limited("open channel", func() (err error) {
			news.ready, err = openLane(i.connection, exchange, true, i.maxInFlight+returnSlack)
			return err
		})
		if err != nil {
			news.ready = nil
			news.verdict = lostBeforeSent()
			i.lose(err)
		}
	}
	i.control.Put(news)
}

// returnSlack is room for returns beyond the messages in flight.
const returnSlack = 16

// reservedName is a routing key that reaches no queue: RabbitMQ lets nobody choose a queue name with this prefix.
const reservedName = "amq.cdc-relay.probe"

var errUnproved = errors.New("the connection was lost before the answer to a probe")

// prove checks that the broker works, before a message is sent alone at which connections may end. The connection must
// survive twice the time that the message left the last one, and the broker must then answer a message that no queue
// receives. So neither an outage nor a proxy that ends each connection is taken for a fault of the message, and a
// system without other messages finds it, too.
func (i *isolator) prove(m *outbox.Message) error {
	known := i.suspects.Of(m)
	if !known.MustBeAlone() || (known.Alone == 0 && i.heard.Load()) {
		return nil
	}
	if known.Alone > 0 {
		timer := time.NewTimer(min(2*known.Lasted, longestWait))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-i.ended:
			return errUnproved
		}
	}
	err := i.limited("publish a probe", i.probe)
	if err == nil {
		i.tellFirstAnswer()
	}
	return err
}

// probe publishes a message that no queue receives, and waits for the answer. A missing permission is an answer, too.
// It uses its own channel, which the broker may close.
func (i *isolator) probe() error {
	channel, err := i.connection.Channel()
	if err != nil {
		return fmt.Errorf("open channel: %w", err)
	}
	if err := channel.Confirm(false); err != nil {
		return fmt.Errorf("select confirm mode: %w", err)
	}
	confirm, err := channel.PublishWithDeferredConfirm("", reservedName, false, false, amqp091.Publishing{})
	if err != nil {
		return fmt.Errorf("publish a probe: %w", err)
	}
	select {
	case <-confirm.Done():
	case <-i.ended:
	}
	if i.over() || i.connection.IsClosed() {
		return errUnproved
	}
	if channel.IsClosed() { // 403: the user may not publish to the default exchange
		return nil
	}
	return channel.Close()
}

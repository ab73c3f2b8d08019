package relay

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/outagelog"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
)

// unanswered finds an outage that the publisher does not report: it is ready, and its results are Unknown or NotSent.
// So it serves each publisher. The outage begins when a message has had no answer twice, and no other message had one
// between. While it lasts, the publisher counts as paused, and messages leave only at intervals. A message that has no
// answer while others have one is logged, and waits ever longer: each try may be another copy.
type unanswered struct {
	log     *slog.Logger
	trouble *outagelog.Log
	// changed is called with the state to report and with whether messages may leave. It is called with the lock held,
	// so that calls keep their order.
	changed func(state publish.State, takes bool)
	// forgetAfter is how long the outage lasts without any result: the messages may be gone.
	forgetAfter time.Duration

	mu struct {
		sync.Mutex
		publisher publish.State // its own
		rows      map[outbox.Ref]*unansweredRow
		answers   int // results that were answers, so far
		outage    publish.State
		last      string // result without an answer
		pause     time.Duration
		paused    bool
		timer     *time.Timer // ends the pause, or the outage
	}
}

// unansweredRow is a message without an answer.
type unansweredRow struct {
	times   int
	answers int // unanswered.mu.answers at the first time
}

// alone reports whether other messages had answers since. Then the cause is the message itself.
func (r *unansweredRow) alone(answers int) bool { return r.times > 1 && r.answers < answers }

const (
	firstPause = time.Second
	lastPause  = 10 * time.Second
	// longestWait is that of a message without an answer.
	longestWait = time.Minute
	// mostUnanswered bounds the memory of messages.
	mostUnanswered = 100_000
)

func newUnanswered(log *slog.Logger, forgetAfter time.Duration, changed func(publish.State, bool)) *unanswered {
	u := &unanswered{log: log, trouble: outagelog.NewPlain(log), changed: changed, forgetAfter: forgetAfter}
	u.mu.rows = make(map[outbox.Ref]*unansweredRow)
	return u
}

// isAnswer reports whether the result shows that the other side works. The publisher itself finds messages Impossible.
func isAnswer(r outbox.Result) bool {
	return r.Outcome == outbox.Confirmed || r.Outcome == outbox.Rejected ||
		r.Reason == outbox.ReasonHandlerImpossible || r.RetryIn > 0 && r.Reason != ""
}

// stateChanged records the publisher's own state. While it reports an outage itself, its results say nothing more.
func (u *unanswered) stateChanged(s publish.State) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mu.publisher = s
	switch {
	case s.Phase == publish.Closed:
		u.trouble.End()
		u.end("")
	case s.Phase != publish.Ready && u.mu.outage.Since.IsZero():
		clear(u.mu.rows)
	}
	u.tell()
}

// result records a result, and returns it with the wait of its message. The caller delivers it afterwards, so that a
// message without an answer does not leave again before the pause has begun.
func (u *unanswered) result(r outbox.Result) outbox.Result {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case isAnswer(r):
		u.mu.answers++
		delete(u.mu.rows, r.Message.Ref())
		if !u.mu.outage.Since.IsZero() {
			u.end("messages are confirmed or rejected again")
			u.tell()
		}
	case r.Outcome == outbox.Impossible, r.NoRoom():
		delete(u.mu.rows, r.Message.Ref())
	case u.mu.publisher.Phase == publish.Ready:
		if row := u.noAnswer(r); row.alone(u.mu.answers) && r.Outcome == outbox.Unknown {
			r.RetryIn = min(firstPause<<min(row.times-2, 10), longestWait)
		}
	}
	return r
}

func (u *unanswered) noAnswer(r outbox.Result) *unansweredRow {
	ref := r.Message.Ref()
	row := u.mu.rows[ref]
	if row == nil {
		if len(u.mu.rows) >= mostUnanswered {
			clear(u.mu.rows)
		}
		row = &unansweredRow{answers: u.mu.answers}
		u.mu.rows[ref] = row
	}
	row.times++
	u.mu.last = r.Outcome.String() + detailOf(r.Detail)
	switch outage := !u.mu.outage.Since.IsZero(); {
	case outage && !u.mu.paused:
		u.report()
	case outage, row.times == 1:
	case row.alone(u.mu.answers):
		m := r.Message
		u.log.Warn("message has no answer: trying again; other messages are not affected",
			"event", event.MessageUnanswered, "id", m.ID, "message_id", m.MessageID.String(),
			"routing_key", outbox.Shortened(m.RoutingKey), "times", row.times, "error", u.mu.last)
	default:
		u.mu.outage = publish.State{Phase: publish.Paused, Since: time.Now()}
		u.report()
	}
	return row
}

// report logs the outage and begins a pause.
func (u *unanswered) report() {
	u.trouble.Report(event.PublisherFailing,
		"publisher gets no answers: messages wait in the table; trying again at intervals", errors.New(u.mu.last))
	u.mu.outage.Detail = "no message was confirmed or rejected, the last result is " + u.mu.last
	u.mu.pause = min(max(2*u.mu.pause, firstPause), lastPause)
	u.mu.paused = true
	u.after(u.mu.pause, func() {
		u.mu.paused = false
		u.after(u.forgetAfter, func() { u.end("no message waits for an answer") })
	})
	u.tell()
}

// after calls f with the lock held after d, unless the outage has ended or another timer was set.
func (u *unanswered) after(d time.Duration, f func()) {
	if u.mu.timer != nil {
		u.mu.timer.Stop()
	}
	var timer *time.Timer
	timer = time.AfterFunc(d, func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.mu.timer == timer {
			f()
			u.tell()
		}
	})
	u.mu.timer = timer
}

func (u *unanswered) end(why string) {
	if u.mu.timer != nil {
		u.mu.timer.Stop()
	}
	u.mu.timer, u.mu.outage, u.mu.paused, u.mu.pause = nil, publish.State{}, false, 0
	u.trouble.Over(event.PublisherRecovered, "publishing normally again: "+why)
}

// connection returns the publisher's own phase, and the number of its answers so far.
func (u *unanswered) connection() (phase publish.Phase, answers int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mu.publisher.Phase, u.mu.answers
}

// lastResult returns the last result without an answer; "": all messages have had answers, or were not sent again.
func (u *unanswered) lastResult() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.mu.rows) == 0 {
		return ""
	}
	return u.mu.last
}

// tell reports the state: that of the outage, or the publisher's own.
func (u *unanswered) tell() {
	state := u.mu.publisher
	takes := state.Phase == publish.Ready && !u.mu.paused
	if state.Phase == publish.Ready && !u.mu.outage.Since.IsZero() {
		u.mu.outage.Breaker = state.Breaker
		state = u.mu.outage
	}
	u.changed(state, takes)
}

package handler

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"slices"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/publish/wire"
)

// handler is one child process. Only the goroutine of run uses its fields.
type handler struct {
	p       *Publisher
	command *exec.Cmd
	stdin   io.WriteCloser
	answers chan [][]byte // its lines
	written chan written  // receives the end of each write
	exited  chan error
	began   time.Time

	asked   []*outbox.Message // unanswered, oldest first; several may share a message_id
	since   time.Time         // when the oldest became the oldest
	writing *batch            // the current write, or nil
	unsent  []*outbox.Message
	// risky are messages to send alone.
	risky []*outbox.Message
	alone bool // the message that waits was one of them
	later []delayed

	answered   bool // at least once
	rejected   bool // a message, because this handler ended
	complained bool // about an invalid line
	stopping   bool // its input was closed
	why        error
}

// batch is a number of lines for one write. They are encoded only then, because a message may get its mark until then.
type batch struct {
	lines    bytes.Buffer
	messages []*outbox.Message
	ends     []int // where each line ends
}

type written struct {
	n   int
	err error
}

// delayed is an answer "unknown" that is delivered after a pause. The relay sends such a message again at once, and a
// handler whose target is down should not be asked without a pause.
type delayed struct {
	result outbox.Result
	at     time.Time
}

const (
	// largestBatch bounds a write, in bytes. A longer message is written alone.
	largestBatch = 16 << 10
	// unknownPause is how long an answer "unknown" is delayed.
	unknownPause = time.Second
	// aloneAfter is how long a handler gets other messages before one at which a handler ended alone.
	aloneAfter = time.Second
	// exitGrace is how long the handler may run after its input was closed.
	exitGrace = time.Second
)

// run works with the handler until it has exited and each message has its result. why says why it exited.
func (h *handler) run(ctx context.Context) {
	stop := ctx.Done()
	var killAt time.Time // zero: not about to end
	for {
		if killAt.IsZero() {
			h.write()
		}
		timer := time.NewTimer(h.untilNext(killAt))
		select {
		case <-h.p.inbox.Messages.Wake():
			h.receive()
		case lines := <-h.answers:
			h.take(lines)
		case w := <-h.written:
			if h.wrote(w); w.err != nil && killAt.IsZero() {
				killAt = time.Now().Add(exitGrace) // its exit says more
			}
		case err := <-h.exited:
			timer.Stop()
			h.end(err)
			return
		case <-stop:
			stop, h.stopping, killAt = nil, true, time.Now().Add(exitGrace)
			_ = h.stdin.Close()
		case <-timer.C:
			if len(h.asked) > 0 && h.untilDue() <= 0 && h.why == nil {
				h.why = fmt.Errorf("the handler gave no answer for message %s within %s",
					h.asked[0].MessageID, h.p.cfg.AnswerTimeout)
				killAt = time.Now()
			}
			if !killAt.IsZero() && !time.Now().Before(killAt) {
				if h.why == nil && !h.stopping {
					h.why = errors.New("the handler has closed its standard input")
				}
				killGroup(h.command)
				killAt = time.Now().Add(exitGrace) // again, until it has exited
			}
		}
		timer.Stop()
		h.passOn(time.Now())
	}
}

// untilNext returns how long until the timer has work.
func (h *handler) untilNext(killAt time.Time) time.Duration {
	const idle = time.Hour
	next := idle
	if !killAt.IsZero() {
		next = time.Until(killAt)
	} else if len(h.asked) > 0 {
		next = h.untilDue()
	} else if trial := aloneAfter - time.Since(h.began); len(h.risky) > 0 && trial > 0 {
		next = trial
	}
	if len(h.later) > 0 {
		next = min(next, time.Until(h.later[0].at))
	}
	return max(next, 0)
}

// untilDue returns how long the handler may take until it has answered the oldest message.
func (h *handler) untilDue() time.Duration {
	begin := h.since
	if start := h.began.Add(h.p.startTime); !h.answered && start.After(begin) {
		begin = start
	}
	return time.Until(begin.Add(h.p.cfg.AnswerTimeout))
}

// receive takes published messages, and sorts the risky ones. Equal ones come in random order, so that several that end
// handlers do not always come before one that shows that handlers work.
func (h *handler) receive() {
	for _, m := range h.p.inbox.Messages.Take(nil) {
		if !h.p.suspects.Of(m).MustBeAlone() {
			h.unsent = append(h.unsent, m)
			continue
		}
		h.risky = append(h.risky, m)
	}
	rand.Shuffle(len(h.risky), func(i, j int) { h.risky[i], h.risky[j] = h.risky[j], h.risky[i] })
	slices.SortFunc(h.risky, h.p.suspects.Compare)
}

// write starts a write of waiting messages, unless one is under way or a message must be alone.
func (h *handler) write() {
	if h.writing != nil || (h.alone && len(h.asked) > 0) {
		return
	}
	h.alone = false
	b := &batch{}
	for len(h.risky) > 0 && len(b.messages) == 0 && h.mayTry(h.risky[0]) {
		if len(h.asked) > 0 {
			return // until the others are answered
		}
		h.add(b, h.risky[0])
		h.risky = h.risky[1:]
		h.alone = len(b.messages) > 0
	}
	if !h.alone {
		h.fill(b)
	}
	if len(b.messages) == 0 {
		return
	}
	h.writing = b
	go func() {
		n, err := h.stdin.Write(b.lines.Bytes())
		h.written <- written{n, err}
	}()
}

// mayTry reports whether a risky message may be sent now. One that has ended a handler alone lets others go first, but
// not for ever.
func (h *handler) mayTry(m *outbox.Message) bool {
	if h.p.suspects.Of(m).Alone == 0 {
		return true
	}
	age := time.Since(h.began)
	idle := len(h.unsent) == 0 && len(h.asked) == 0
	return age >= aloneAfter && (idle || age >= h.p.cfg.AnswerTimeout)
}

// fill adds waiting messages to a write.
func (h *handler) fill(b *batch) {
	taken := 0
	for _, m := range h.unsent {
		if b.lines.Len() > 0 && b.lines.Len()+len(m.Payload) > largestBatch {
			break
		}
		taken++
		h.add(b, m)
	}
	h.unsent = h.unsent[taken:]
}

// add adds a message to a write, or delivers the reason why it has no line.
func (h *handler) add(b *batch, m *outbox.Message) {
	if err := wire.AppendLine(&b.lines, m, h.p.cfg.DefaultExchange); err != nil {
		h.p.inbox.Sink.Deliver(wire.Impossible(m, err))
		return
	}
	m.SentAt = time.Now()
	if len(h.asked) == 0 {
		h.since = time.Now()
	}
	h.asked = append(h.asked, m)
	b.messages = append(b.messages, m)
	b.ends = append(b.ends, b.lines.Len())
}

// wrote records the end of a write. After a failed write, messages that the handler cannot have read are NotSent.
func (h *handler) wrote(w written) {
	b := h.writing
	h.writing = nil
	if w.err == nil {
		return
	}
	begin := 0
	for i, m := range b.messages {
		if at := slices.Index(h.asked, m); begin >= w.n && at >= 0 {
			h.remove(at)
			h.p.inbox.Deliver(m, outbox.NotSent, "the handler has ended")
		}
		begin = b.ends[i]
	}
}

// remove removes a message that has its result.
func (h *handler) remove(at int) {
	h.asked = slices.Delete(h.asked, at, at+1)
	if at == 0 {
		h.since = time.Now()
	}
}

// take reads new answers.
func (h *handler) take(lines [][]byte) {
	for _, text := range lines {
		a, err := parseAnswer(text)
		at := slices.IndexFunc(h.asked, func(m *outbox.Message) bool { return m.MessageID == a.MessageID })
		if a.MessageID == (outbox.UUID{}) {
			at = -1
		} else if at < 0 {
			err = fmt.Errorf("it has no message %s without an answer", a.MessageID)
		}
		if at < 0 {
			h.complain(text, err)
			continue
		}
		m := h.asked[at]
		h.answered = true
		h.remove(at)
		h.p.suspects.Clear(m)
		result := a.result(m, err)
		if result.Outcome == outbox.Unknown && h.why == nil {
			h.later = append(h.later, delayed{result, time.Now().Add(unknownPause)})
			continue
		}
		h.p.inbox.Sink.Deliver(result)
	}
}

// complain logs that a line is no answer, once: a handler that prints other text prints much of it. It does not log the
// line, which may be a message.
func (h *handler) complain(line []byte, err error) {
	if h.complained {
		return
	}
	h.complained = true
	h.p.cfg.Logger.Warn("handler answer invalid: ignoring this line and others like it",
		"event", event.HandlerAnswerInvalid, "error", err, "bytes", len(line))
}

// passOn delivers the delayed answers that are due.
func (h *handler) passOn(now time.Time) {
	due := 0
	for due < len(h.later) && !h.later[due].at.After(now) {
		h.p.inbox.Sink.Deliver(h.later[due].result)
		due++
	}
	h.later = h.later[due:]
}

// end gives all remaining messages their results. The last answer is taken by now.
func (h *handler) end(exit error) {
	if h.why == nil {
		h.why = errors.New("the handler has ended: exit status 0")
		if exit != nil {
			h.why = fmt.Errorf("the handler has ended: %w", exit)
		}
	}
	if h.writing != nil { // its pipe is closed
		h.wrote(<-h.written)
	}
	// The state comes before the results: after its result, the relay publishes no more.
	h.p.inbox.SetState(publish.Connecting, oneLine(h.why.Error()))
	h.passOn(time.Now().Add(unknownPause))
	if h.answered {
		h.p.suspects.HandlerWorked()
	}
	for _, m := range h.asked {
		h.unanswered(m)
	}
	for _, m := range append(h.unsent, h.risky...) {
		h.p.inbox.Deliver(m, outbox.NotSent, "the handler has ended")
	}
}

// unanswered delivers the result of a message that the handler has not answered. A handler that had to stop says
// nothing about it.
func (h *handler) unanswered(m *outbox.Message) {
	if !h.stopping {
		end := publish.SessionEnd{Alone: h.p.suspects.Of(m).MustBeAlone(), Answered: h.answered}
		if alone, culprit := h.p.suspects.Blame(m, end); culprit {
			h.rejected = true
			h.p.inbox.Sink.Deliver(outbox.Result{
				Message: m, Outcome: outbox.Rejected, Reason: outbox.ReasonHandlerRejected, MaybeSent: true,
				Detail: fmt.Sprintf("%d handlers ended when this message was sent alone, the last one: %s",
					alone, oneLine(h.why.Error())),
			})
			return
		}
	}
	h.p.inbox.Deliver(m, outbox.Unknown, "the handler ended before its answer")
}

package publish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// handler is one child process. Only the goroutine of run uses its fields.
type handler struct {
	p       *Exec
	command *exec.Cmd
	stdin   io.WriteCloser
	answers *mailbox[[]byte] // its lines
	written chan written     // receives the end of each write
	exited  chan error

	hand    *hand
	writing *chunk // the current write, or nil
	unsent  []*outbox.Message
	later   []delayed

	answered   bool // at least once
	complained bool // about an invalid line
	why        error
}

// chunk is a number of lines for one write. They are encoded only then, because a message may get its mark until then.
type chunk struct {
	lines bytes.Buffer
	holds []*held
	ends  []int // where each line ends
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
	// mostOfChunk bounds a write, in bytes. A longer message is written alone.
	mostOfChunk = 16 << 10
	// unknownPause is how long an answer "unknown" is delayed.
	unknownPause = time.Second
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
		case <-h.p.in.wake:
			h.unsent = append(h.unsent, h.p.in.take(nil)...)
		case <-h.answers.wake:
			h.take()
		case w := <-h.written:
			h.wrote(w)
		case err := <-h.exited:
			timer.Stop()
			h.end(err)
			return
		case <-stop:
			stop, killAt = nil, time.Now().Add(exitGrace)
			_ = h.stdin.Close()
		case <-timer.C:
			if stuck := h.hand.oldestFor() >= h.p.cfg.AnswerTimeout; stuck && h.why == nil {
				h.why = fmt.Errorf("the handler gave no answer for message %s within %s", h.hand.oldest().message.MessageID, h.p.cfg.AnswerTimeout)
				killAt = time.Now()
			}
			if !killAt.IsZero() && !time.Now().Before(killAt) {
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
	} else if h.hand.oldest() != nil {
		next = h.p.cfg.AnswerTimeout - h.hand.oldestFor()
	}
	if len(h.later) > 0 {
		next = min(next, time.Until(h.later[0].at))
	}
	return max(next, 0)
}

// write starts a write of waiting messages, unless one is under way.
func (h *handler) write() {
	if h.writing != nil || len(h.unsent) == 0 {
		return
	}
	c := &chunk{}
	taken := 0
	for _, m := range h.unsent {
		if c.lines.Len() > 0 && c.lines.Len()+len(m.Payload) > mostOfChunk {
			break
		}
		taken++
		if err := appendLine(&c.lines, m, h.p.cfg.DefaultExchange); err != nil {
			h.p.sink.Deliver(impossible(m, err))
			continue
		}
		m.SentAt = time.Now()
		c.holds = append(c.holds, h.hand.add(m))
		c.ends = append(c.ends, c.lines.Len())
	}
	h.unsent = h.unsent[taken:]
	if len(c.holds) == 0 {
		return
	}
	h.writing = c
	go func() {
		n, err := h.stdin.Write(c.lines.Bytes())
		h.written <- written{n, err}
	}()
}

// wrote records the end of a write. After a failed write, messages that the handler cannot have read are NotSent.
func (h *handler) wrote(w written) {
	c := h.writing
	h.writing = nil
	if w.err == nil {
		return
	}
	begin := 0
	for i, one := range c.holds {
		if begin >= w.n && h.hand.remove(one) {
			h.p.deliver(one.message, outbox.NotSent, "the handler has ended")
		}
		begin = c.ends[i]
	}
}

// take reads new answers.
func (h *handler) take() {
	for _, text := range h.answers.take(nil) {
		a, err := parseAnswer(text)
		var one *held
		if a.MessageID != (outbox.UUID{}) {
			if one = h.hand.find(a.MessageID); one == nil {
				err = fmt.Errorf("it has no message %s without an answer", a.MessageID)
			}
		}
		if err != nil && !h.complained {
			h.complained = true // a handler that prints other text prints much of it
			h.p.cfg.Logger.Warn("handler wrote a line that is no answer, ignoring it and others like it",
				"event", event.HandlerAnswerInvalid, "error", err, "line", cut(string(text), 200))
		}
		if one == nil {
			continue
		}
		h.answered = true
		h.hand.remove(one)
		result := a.result(one.message, err)
		if result.Outcome == outbox.Unknown && h.why == nil {
			h.later = append(h.later, delayed{result, time.Now().Add(unknownPause)})
			continue
		}
		h.p.sink.Deliver(result)
	}
}

// passOn delivers the delayed answers that are due.
func (h *handler) passOn(now time.Time) {
	due := 0
	for due < len(h.later) && !h.later[due].at.After(now) {
		h.p.sink.Deliver(h.later[due].result)
		due++
	}
	h.later = h.later[due:]
}

// end gives all remaining messages their results. os/exec has read the last line by now.
func (h *handler) end(exit error) {
	if h.why == nil {
		h.why = errors.New("the handler has ended")
		if exit != nil {
			h.why = fmt.Errorf("the handler has ended: %w", exit)
		}
	}
	h.take()
	if h.writing != nil { // its pipe is closed
		h.wrote(<-h.written)
	}
	h.p.setState(Connecting, oneLine(h.why.Error())) // before the results: after its result, the relay publishes no more
	h.passOn(time.Now().Add(unknownPause))
	for one := h.hand.oldest(); one != nil; one = h.hand.oldest() {
		h.hand.remove(one)
		h.p.deliver(one.message, outbox.Unknown, "the handler ended before its answer")
	}
	for _, m := range h.unsent {
		h.p.deliver(m, outbox.NotSent, "the handler has ended")
	}
}

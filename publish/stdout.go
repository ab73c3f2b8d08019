package publish

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// StdoutConfig is what NewStdout needs; only Writer is required.
type StdoutConfig struct {
	// Writer gets one JSON object a line. It is not closed.
	Writer io.Writer
	// DefaultExchange stands in for messages that name none.
	DefaultExchange string
}

// Stdout writes messages as JSON lines, for pipes and for trying the relay out. A
// message is confirmed once the writer took its line. What AMQP could not carry is
// impossible here too. Make it with NewStdout.
type Stdout struct {
	cfg StdoutConfig
	in  *mailbox[*outbox.Message]

	mu    sync.Mutex
	ended bool // Run will take nothing more from in
	sink  Sink // set when Run starts

	// These belong to the goroutine of Run.
	state State
	lines bytes.Buffer
	batch []*outbox.Message // whose lines these are
	torn  bool              // the writer took the beginning of a line only
}

// NewStdout makes a publisher that writes.
func NewStdout(cfg StdoutConfig) *Stdout {
	return &Stdout{cfg: cfg, in: newMailbox[*outbox.Message]()}
}

// Publish hands a message over; see Publisher.
func (p *Stdout) Publish(m *outbox.Message) {
	p.mu.Lock()
	ended := p.ended
	if !ended {
		p.in.add(m)
	}
	p.mu.Unlock()
	if ended {
		p.sink.Deliver(outbox.Result{Message: m, Outcome: outbox.NotSent, Detail: "the publisher has stopped"})
		return
	}
	p.in.signal()
}

// Run writes until ctx is done. It returns an error where the reader of a pipe is
// gone; after any other error it tries again. A Write that hangs when ctx is done is
// left behind after a second, and what it held is Unknown.
func (p *Stdout) Run(ctx context.Context, sink Sink) error {
	p.sink = sink
	p.setState(Connecting, "starting")
	p.reject("starting")
	p.setState(Ready, "")
	err := p.write(ctx)
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.reject("the publisher has stopped")
	p.setState(Closed, "stopped")
	return err
}

func (p *Stdout) write(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.in.wake:
		}
		err := p.writeOnce(ctx)
		switch {
		case err == nil:
		case errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe):
			return fmt.Errorf("write messages: nobody reads them any more: %w", err)
		default:
			p.wait(ctx, retryWriteAfter)
			p.setState(Ready, "")
		}
	}
}

// retryWriteAfter is the pause after a write that failed.
const retryWriteAfter = 500 * time.Millisecond

// mostBuffered is how many bytes of lines are written at once.
const mostBuffered = 256 << 10

// writeOnce writes all that waits.
func (p *Stdout) writeOnce(ctx context.Context) error {
	for waiting := p.in.take(nil); len(waiting) > 0; waiting = p.in.take(nil) {
		for i, m := range waiting {
			p.add(m)
			if p.lines.Len() < mostBuffered && i < len(waiting)-1 {
				continue
			}
			if err := p.flush(ctx); err != nil {
				for _, m := range waiting[i+1:] {
					p.deliver(m, outbox.NotSent, err.Error())
				}
				return err
			}
		}
	}
	return nil
}

// line is one message as it is written. The names are those of the columns.
type line struct {
	ID                int64           `json:"id"`
	MessageID         string          `json:"message_id"`
	Exchange          string          `json:"exchange"`
	RoutingKey        string          `json:"routing_key"`
	OrderingKey       *string         `json:"ordering_key"`
	Headers           json.RawMessage `json:"headers,omitempty"`
	Properties        json.RawMessage `json:"properties,omitempty"`
	CreatedAt         time.Time       `json:"created_at"`
	PossibleDuplicate bool            `json:"possible_duplicate"`
	Payload           json.RawMessage `json:"payload,omitempty"`
	PayloadBase64     []byte          `json:"payload_base64,omitempty"`
}

// withExtra are the headers of a message that encode has taken, with those of other columns.
func withExtra(m *outbox.Message) json.RawMessage {
	headers := make(map[string]any)
	for _, h := range m.Extra {
		headers[h.Name] = h.Value
	}
	own := map[string]json.RawMessage{}
	if len(m.Headers) > 0 {
		_ = json.Unmarshal(m.Headers, &own) // encode has read them
	}
	for name, value := range own {
		headers[name] = value
	}
	text, _ := json.Marshal(headers) // strings, numbers and booleans, and what was JSON before
	return text
}

// add appends the line of a message, or delivers why there is none.
func (p *Stdout) add(m *outbox.Message) {
	lim := limits{defaultExchange: p.cfg.DefaultExchange, frameMax: defaultFrameMax}
	mark := m.MayBeKnown()
	parcel, err := encode(m, lim, mark)
	if err != nil {
		p.sink.Deliver(impossible(m, err))
		return
	}
	l := line{
		ID: m.ID, MessageID: parcel.body.MessageId, Exchange: parcel.exchange, RoutingKey: m.RoutingKey,
		OrderingKey: m.OrderingKey, Headers: m.Headers, Properties: m.Properties,
		CreatedAt: m.CreatedAt, PossibleDuplicate: mark,
	}
	if len(m.Extra) > 0 {
		l.Headers = withExtra(m)
	}
	if m.Binary || !json.Valid(m.Payload) {
		l.PayloadBase64 = m.Payload
	} else {
		l.Payload = m.Payload
	}
	if p.torn && p.lines.Len() == 0 {
		p.lines.WriteByte('\n') // this line must not continue that one
	}
	encoder := json.NewEncoder(&p.lines)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(l); err != nil {
		// Encode writes nothing where it fails; it can only fail over a strange date.
		p.sink.Deliver(impossible(m, &invalid{outbox.ReasonInvalidRow, err.Error()}))
		return
	}
	m.SentAt = time.Now()
	p.batch = append(p.batch, m)
}

// flush writes the lines and delivers the result of each. After a write that failed in the
// midst all of them are Unknown.
func (p *Stdout) flush(ctx context.Context) error {
	if len(p.batch) == 0 {
		return nil
	}
	n, err := p.writeBytes(ctx, p.lines.Bytes())
	outcome, detail := outbox.Confirmed, ""
	if err != nil { // the state before the results: who gets one publishes no more
		p.setState(Connecting, fmt.Sprintf("write messages: %v", err))
		outcome, detail = outbox.Unknown, err.Error()
		if n == 0 && !errors.Is(err, errHung) {
			outcome = outbox.NotSent
		}
	}
	for _, m := range p.batch {
		p.deliver(m, outcome, detail)
	}
	if n > 0 {
		p.torn = p.lines.Bytes()[n-1] != '\n'
	}
	p.batch = p.batch[:0]
	if errors.Is(err, errHung) {
		p.lines = bytes.Buffer{} // the writer still holds the old one
	}
	p.lines.Reset()
	return err
}

var errHung = errors.New("the writer takes nothing")

// hungAfter is how long a write may last before the publisher says that nobody reads.
const hungAfter = 5 * time.Second

// writeBytes writes, and stops waiting for it a moment after ctx is done. While it lasts
// for long, the publisher is blocked.
func (p *Stdout) writeBytes(ctx context.Context, b []byte) (int, error) {
	const timeout = 250 * time.Millisecond
	var n int
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		n, err = p.cfg.Writer.Write(b)
		if err == nil && n < len(b) {
			err = io.ErrShortWrite
		}
	}()
	hung := time.NewTimer(hungAfter)
	defer hung.Stop()
	for {
		select {
		case <-done:
			if err == nil {
				p.setState(Ready, "")
			}
			return n, err
		case <-hung.C:
			p.setState(Blocked, "the reader of the messages has taken nothing for "+hungAfter.String())
			continue
		case <-ctx.Done():
		}
		break
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-done:
		return n, err
	case <-timer.C:
		return 0, errHung
	}
}

func (p *Stdout) deliver(m *outbox.Message, o outbox.Outcome, detail string) {
	p.sink.Deliver(outbox.Result{Message: m, Outcome: o, Detail: detail})
}

func (p *Stdout) reject(why string) {
	for _, m := range p.in.take(nil) {
		p.deliver(m, outbox.NotSent, why)
	}
}

// wait lets d pass; what is published meanwhile comes back at once.
func (p *Stdout) wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		p.reject("the writer failed")
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-p.in.wake:
		}
	}
}

func (p *Stdout) setState(phase Phase, detail string) {
	if p.state.Phase == phase {
		return
	}
	p.state = State{Phase: phase, Since: time.Now(), Detail: detail}
	p.sink.StateChanged(p.state)
}

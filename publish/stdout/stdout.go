// Package stdout writes messages as lines of JSON.
package stdout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/publish/wire"
)

// Config is the configuration for New; only Writer is required.
type Config struct {
	// Writer receives one JSON object per line. It is not closed.
	Writer io.Writer
	// DefaultExchange is used for messages without an exchange.
	DefaultExchange string
}

// Publisher writes messages as lines of JSON, for pipes and for trials of the relay. A message is confirmed once the
// writer has taken its line, however long that lasts. A message that AMQP could not carry is Impossible here too.
// Create it with New.
type Publisher struct {
	inbox *publish.Inbox
	cfg   Config

	// Only the goroutine of Run uses the fields below.
	lines bytes.Buffer
	batch []*outbox.Message // the messages of lines
}

// New returns a publisher that writes lines.
func New(cfg Config) *Publisher { return &Publisher{cfg: cfg, inbox: publish.NewInbox()} }

// Run implements publish.Publisher: it writes until ctx is done. It returns an error if the writer does not take a
// line. If a Write lasts when ctx is done, Run leaves it behind after 250 ms, and its messages are Unknown.
func (p *Publisher) Run(ctx context.Context, sink publish.Sink) error {
	p.inbox.Sink = sink
	p.inbox.SetState(publish.Connecting, "starting")
	p.inbox.Reject("starting")
	p.inbox.SetState(publish.Ready, "")
	err := p.write(ctx)
	if errors.Is(err, errHung) {
		err = nil // ctx is done
	}
	p.inbox.End()
	p.inbox.SetState(publish.Closed, "stopped")
	return err
}

// Publish implements publish.Publisher.
func (p *Publisher) Publish(m *outbox.Message) { p.inbox.Publish(m) }

// mostBuffered is the number of bytes from which buffered lines are written.
const mostBuffered = 256 << 10

func (p *Publisher) write(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.inbox.Messages.Wake():
		}
		waiting := p.inbox.Messages.Take(nil)
		for i, m := range waiting {
			p.add(m)
			if p.lines.Len() < mostBuffered && i < len(waiting)-1 {
				continue
			}
			if err := p.flush(ctx); err != nil {
				for _, m := range waiting[i+1:] {
					p.inbox.Deliver(m, outbox.NotSent, err.Error())
				}
				return err
			}
		}
	}
}

// add appends the line of a message, or delivers the reason why there is none.
func (p *Publisher) add(m *outbox.Message) {
	if err := wire.AppendLine(&p.lines, m, p.cfg.DefaultExchange); err != nil {
		p.inbox.Sink.Deliver(wire.Impossible(m, err))
		return
	}
	m.SentAt = time.Now()
	p.batch = append(p.batch, m)
}

// flush writes the lines and delivers the results. After a partial write all messages are Unknown.
func (p *Publisher) flush(ctx context.Context) error {
	if len(p.batch) == 0 {
		return nil
	}
	n, err := p.writeBytes(ctx, p.lines.Bytes())
	outcome, detail := outbox.Confirmed, ""
	if err != nil {
		if err = fmt.Errorf("write messages: %w", err); closedByReader(err) {
			err = fmt.Errorf("the reader has closed the output: %w", err)
		}
		// The state before the results: after its result, the relay publishes no more.
		p.inbox.SetState(publish.Connecting, err.Error())
		outcome, detail = outbox.Unknown, err.Error()
		if n == 0 {
			outcome = outbox.NotSent
		}
	}
	for _, m := range p.batch {
		p.inbox.Deliver(m, outcome, detail)
	}
	p.batch = p.batch[:0]
	p.lines.Reset()
	return err
}

var errHung = errors.New("the writer accepts nothing")

// writeBytes writes, and stops waiting shortly after ctx is done.
func (p *Publisher) writeBytes(ctx context.Context, b []byte) (int, error) {
	const grace = 250 * time.Millisecond
	type result struct {
		n   int
		err error
	}
	done := make(chan result, 1)
	go func() {
		n, err := p.cfg.Writer.Write(b)
		done <- result{n, err}
	}()
	var tooLate <-chan time.Time
	for stop := ctx.Done(); ; {
		select {
		case r := <-done:
			return r.n, r.err
		case <-stop:
			stop, tooLate = nil, time.After(grace)
		case <-tooLate:
			return len(b), errHung
		}
	}
}

func closedByReader(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe)
}

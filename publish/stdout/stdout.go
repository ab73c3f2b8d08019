// Package stdout writes messages as lines of JSON.
package stdout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"syscall"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/outagelog"
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
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// Publisher writes messages as lines of JSON, for pipes and for trials of the relay. A message is confirmed once the
// writer has taken its line, however long that lasts. A message that AMQP could not carry is Impossible here too.
// Create it with New.
type Publisher struct {
	inbox   *publish.Inbox
	cfg     Config
	trouble *outagelog.Log

	// Only the goroutine of Run uses the fields below.
	lines bytes.Buffer
	batch []*outbox.Message // the messages of lines
	torn  bool              // the writer took only a part of a line
}

// New returns a publisher that writes lines.
func New(cfg Config) *Publisher {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Publisher{cfg: cfg, inbox: publish.NewInbox(), trouble: outagelog.NewPlain(cfg.Logger)}
}

// Run implements publish.Publisher: it writes until ctx is done. It returns an error if the reader of a pipe is gone;
// after any other error it tries again. If a Write hangs when ctx is done, Run leaves it behind after 250 ms, and its
// messages are Unknown.
func (p *Publisher) Run(ctx context.Context, sink publish.Sink) error {
	p.inbox.Sink = sink
	p.inbox.SetState(publish.Connecting, "starting")
	p.inbox.Reject("starting")
	p.inbox.SetState(publish.Ready, "")
	err := p.write(ctx)
	p.inbox.End()
	p.inbox.SetState(publish.Closed, "stopped")
	return err
}

// Publish implements publish.Publisher.
func (p *Publisher) Publish(m *outbox.Message) { p.inbox.Publish(m) }

func (p *Publisher) write(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.inbox.Messages.Wake():
		}
		err := p.writeOnce(ctx)
		switch {
		case err == nil:
		case errors.Is(err, errHung):
			return nil // ctx is done
		case errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe):
			return fmt.Errorf("write messages: the reader has closed the output: %w", err)
		default:
			p.trouble.Report(event.OutputFailing,
				"cannot write to the standard output: retrying; messages wait in the table", err)
			p.inbox.Wait(ctx, retryWriteAfter, "the writer failed")
			p.inbox.SetState(publish.Ready, "")
		}
	}
}

// retryWriteAfter is the pause after a failed write.
const retryWriteAfter = 500 * time.Millisecond

// mostBuffered is the number of bytes from which buffered lines are written.
const mostBuffered = 256 << 10

// writeOnce writes all waiting messages.
func (p *Publisher) writeOnce(ctx context.Context) error {
	for waiting := p.inbox.Messages.Take(nil); len(waiting) > 0; waiting = p.inbox.Messages.Take(nil) {
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
	return nil
}

// add appends the line of a message, or delivers the reason why there is none.
func (p *Publisher) add(m *outbox.Message) {
	torn := p.torn && p.lines.Len() == 0
	if torn {
		p.lines.WriteByte('\n') // this line must not continue the torn one
	}
	if err := wire.AppendLine(&p.lines, m, p.cfg.DefaultExchange); err != nil {
		if torn {
			p.lines.Reset()
		}
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
	if err != nil { // the state before the results: after its result, the relay publishes no more
		p.inbox.SetState(publish.Connecting, fmt.Sprintf("write messages: %v", err))
		outcome, detail = outbox.Unknown, err.Error()
		if n == 0 && !errors.Is(err, errHung) {
			outcome = outbox.NotSent
		}
	}
	for _, m := range p.batch {
		p.inbox.Deliver(m, outcome, detail)
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

// hungAfter is how long a write may last before the log says so.
const hungAfter = 5 * time.Second

// writeBytes writes, and stops waiting shortly after ctx is done.
func (p *Publisher) writeBytes(ctx context.Context, b []byte) (int, error) {
	const grace = 250 * time.Millisecond
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
	stop, tooLate := ctx.Done(), (<-chan time.Time)(nil)
	for {
		select {
		case <-done:
			if err == nil {
				p.inbox.SetState(publish.Ready, "")
				p.trouble.Over(event.OutputRecovered, "writing to the standard output again")
			}
			return n, err
		case <-hung.C:
			p.inbox.SetState(publish.Ready, "standard output takes nothing: its reader has paused")
			p.trouble.Report(event.OutputFailing,
				"standard output takes nothing: waiting for its reader; messages wait in the table",
				fmt.Errorf("a write lasts more than %s", hungAfter))
		case <-stop:
			stop, tooLate = nil, time.After(grace)
		case <-tooLate:
			return 0, errHung
		}
	}
}

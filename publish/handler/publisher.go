// Package handler publishes to a child process, the handler, which decides where a message goes.
package handler

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
)

// Config is the configuration for New; only Command is required.
type Config struct {
	// Command is the handler: a program and its arguments.
	Command []string
	// Env is the environment of the handler, as in os/exec; nil: Environment of this process.
	Env []string
	// Stderr receives the handler's standard error; nil: discarded.
	Stderr io.Writer
	// DefaultExchange is used for messages without an exchange.
	DefaultExchange string
	// AnswerTimeout is how long the handler may leave its oldest message without an answer; default 10 s. A handler
	// that starts has 10 s more.
	AnswerTimeout time.Duration
	// Logger defaults to slog.Default().
	Logger *slog.Logger
	// ReapOrphans waits for the processes that handlers leave to this process, as process 1 of a container must. It
	// would also wait for other child processes, so there must be none.
	ReapOrphans bool
}

// Publisher writes lines of JSON to the handler's standard input, and reads an answer for each from its standard
// output. It restarts a handler that ends, or that leaves a message without an answer, with backoff. The handler's
// unanswered messages are then Unknown. A message that ends handler after handler is Rejected (see publish.Suspects).
// Create it with New.
type Publisher struct {
	inbox *publish.Inbox
	cfg   Config
	// startTime is how long a handler may take before its answers are due.
	startTime time.Duration
	suspects  *publish.Suspects
	orphans   orphans
}

// New looks for the program; it does not start it.
func New(cfg Config) (*Publisher, error) {
	if len(cfg.Command) == 0 {
		return nil, errors.New("no handler was given")
	}
	if _, err := exec.LookPath(cfg.Command[0]); err != nil {
		return nil, err
	}
	if cfg.AnswerTimeout <= 0 {
		cfg.AnswerTimeout = 10 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	cfg.Logger = event.Limited(cfg.Logger)
	if cfg.Env == nil {
		cfg.Env = Environment(os.Environ())
	}
	return &Publisher{
		cfg: cfg, inbox: publish.NewInbox(), startTime: 10 * time.Second, suspects: publish.NewSuspects(),
	}, nil
}

// The pause before the handler is restarted grows from the first to the second.
const (
	firstRestart = 100 * time.Millisecond
	lastRestart  = 30 * time.Second
)

// Run implements publish.Publisher: it runs one handler at a time until ctx is done. Then it closes the handler's
// standard input, and waits a second for the last answers. It returns an error if the first handler cannot be started.
func (p *Publisher) Run(ctx context.Context, sink publish.Sink) error {
	p.inbox.Sink = sink
	p.inbox.SetState(publish.Connecting, "starting the handler")
	pause := &backoff.ExponentialBackOff{
		InitialInterval: firstRestart, MaxInterval: lastRestart, Multiplier: 2, RandomizationFactor: 0.1,
	}
	pause.Reset()
	if p.cfg.ReapOrphans {
		defer p.orphans.watch()()
	}
	started := false
	for ctx.Err() == nil {
		h, err := p.startHandler()
		switch {
		case err != nil && !started:
			p.inbox.End()
			p.inbox.SetState(publish.Closed, oneLine(err.Error()))
			return err
		case err == nil:
			started = true
			p.inbox.Reject("the handler is starting")
			p.inbox.SetState(publish.Ready, "")
			h.run(ctx)
			if h.answered || h.rejected {
				pause.Reset()
			}
			err = h.why
		}
		if ctx.Err() != nil {
			break
		}
		again := pause.NextBackOff()
		p.cfg.Logger.Warn("handler ended: restarting it; messages wait in the table",
			"event", event.HandlerEnded, "error", err, "again_in", again.Round(time.Millisecond))
		p.inbox.SetState(publish.Connecting, oneLine(err.Error()))
		p.inbox.RejectFor(ctx, again, "the handler is not running")
	}
	p.inbox.End()
	p.inbox.SetState(publish.Closed, "stopped")
	return nil
}

// Publish implements publish.Publisher.
func (p *Publisher) Publish(m *outbox.Message) { p.inbox.Publish(m) }

// startHandler starts the child process.
func (p *Publisher) startHandler() (*handler, error) {
	h := &handler{
		p: p, began: time.Now(),
		answers: make(chan [][]byte), written: make(chan written, 1), exited: make(chan error, 1),
	}
	h.command = exec.Command(p.cfg.Command[0], p.cfg.Command[1:]...)
	h.command.Env = p.cfg.Env
	h.command.Stderr = p.cfg.Stderr
	answers := &lineReader{lines: h.answers}
	h.command.Stdout = answers
	h.command.WaitDelay = time.Second // for children of its own that keep its output open
	ownGroup(h.command)
	var err error
	if h.stdin, err = h.command.StdinPipe(); err != nil {
		return nil, fmt.Errorf("make a pipe to the handler: %w", err)
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the kernel kills the handler when the thread that started it ends
		defer runtime.UnlockOSThread()
		p.orphans.mu.Lock()
		err := h.command.Start()
		if err == nil {
			p.orphans.handler = h.command.Process.Pid
		}
		p.orphans.mu.Unlock()
		started <- err
		if err == nil {
			err = h.command.Wait()
			killGroup(h.command) // the children that it has left
			answers.end()
			h.exited <- err
		}
	}()
	if err := <-started; err != nil {
		const fix = "# is it a program? A script needs a first line such as #!/bin/sh"
		return nil, &problem.Problem{What: "start the handler", Fix: fix, Err: err}
	}
	return h, nil
}

// lineReader splits the handler's output into lines. A handler that writes faster than they are taken waits.
type lineReader struct {
	lines chan<- [][]byte
	rest  []byte
}

// longestAnswer bounds an answer, in bytes. The rest of a longer line is dropped, so it is no answer.
const longestAnswer = 64 << 10

// Write is called by one goroutine of os/exec.
func (r *lineReader) Write(b []byte) (int, error) {
	n := len(b)
	var lines [][]byte
	for {
		line, rest, ended := bytes.Cut(b, []byte{'\n'})
		r.rest = append(r.rest, line[:min(len(line), longestAnswer-len(r.rest))]...)
		if !ended {
			break
		}
		lines = append(lines, r.rest)
		r.rest, b = nil, rest
	}
	if len(lines) > 0 {
		r.lines <- lines
	}
	return n, nil
}

// end passes on what the handler wrote after its last line break.
func (r *lineReader) end() {
	if len(r.rest) > 0 {
		r.lines <- [][]byte{r.rest}
	}
}

// Environment returns an environment, as os.Environ does, for the handler: without what the relay and its
// libraries read as credentials, or as their own settings that may contain some. A handler gets its credentials under
// other names. Without:
//
//   - CDC_RELAY_…: settings of the relay
//   - PG and capital letters (PGPASSWORD, PGPASSFILE, PGSERVICEFILE, PGSSLKEY, …): what libpq reads
//   - OTEL_EXPORTER_…: headers, keys and addresses of OpenTelemetry
//   - DD_API_KEY, DD_APP_KEY, DD_DOGSTATSD_URL: Datadog
//   - CREDENTIALS_DIRECTORY, NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID, LISTEN_…: what systemd gives the relay
func Environment(environ []string) []string {
	own := regexp.MustCompile(`^(?i:CDC_RELAY_.*|PG[A-Z]+|OTEL_EXPORTER_.*|DD_(API_KEY|APP_KEY|DOGSTATSD_URL)|` +
		`CREDENTIALS_DIRECTORY|NOTIFY_SOCKET|WATCHDOG_(USEC|PID)|LISTEN_(FDS|FDNAMES|PID))$`)
	return slices.DeleteFunc(slices.Clone(environ), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return own.MatchString(name)
	})
}

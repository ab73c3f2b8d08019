package services

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Limits for a server to accept connections, and to end. They only end a hang: a broker takes five seconds of processor
// time to start, which can be minutes on a busy machine.
const (
	startTimeout = 10 * time.Minute
	endTimeout   = 10 * time.Minute
)

// errNotOurs is returned if a test wants to stop or configure a server that is known only by its address.
var errNotOurs = errors.New("this server was given by the environment: only a private one can be controlled")

// runner controls one server. SIGSTOP, SIGCONT and SIGKILL reach every process of the server, other signals its main
// process.
type runner interface {
	start(ctx context.Context) error
	signal(ctx context.Context, sig syscall.Signal) error
	wait(ctx context.Context) error // until the server has ended
	tool(ctx context.Context, args ...string) (string, error)
	pid() int // 0 if the server's process is not on this machine
	log(ctx context.Context) string
	close(ctx context.Context) error // ends the server and removes its data
}

// foreign is the runner of a server given by the environment.
type foreign struct{}

func (foreign) start(context.Context) error                     { return errNotOurs }
func (foreign) signal(context.Context, syscall.Signal) error    { return errNotOurs }
func (foreign) wait(context.Context) error                      { return errNotOurs }
func (foreign) tool(context.Context, ...string) (string, error) { return "", errNotOurs }
func (foreign) pid() int                                        { return 0 }
func (foreign) log(context.Context) string                      { return "" }
func (foreign) close(context.Context) error                     { return nil }

// local runs a server from the machine's own programs.
type local struct {
	folder  string           // private to this server, removed by close
	logFile string           // standard output and error of every run
	command func() *exec.Cmd // returns a new command that starts the server
	tools   func(ctx context.Context, args ...string) *exec.Cmd
	helpers []*process // processes that the server needs, from the first start to close

	mu  sync.Mutex
	run *process // the current or last run
}

func (l *local) current() *process {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.run
}

func (l *local) start(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.run != nil && !l.run.ended.Load() {
		return errors.New("the server is running already")
	}
	run, err := startLogged(l.command(), l.logFile, l.folder)
	if err != nil {
		return err
	}
	l.run = run
	return nil
}

// startLogged starts cmd with its output appended to logFile. A pipe would not do: a child that outlives the server
// could keep it open, and Wait would wait for it.
func startLogged(cmd *exec.Cmd, logFile, folder string) (*process, error) {
	output, err := os.OpenFile(logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the server's log: %w", err)
	}
	defer func() { _ = output.Close() }()
	cmd.Stdout, cmd.Stderr = output, output
	return startProcess(cmd, folder)
}

func (l *local) signal(_ context.Context, sig syscall.Signal) error {
	run := l.current()
	if run == nil || run.ended.Load() {
		return errNotRunning
	}
	switch sig {
	case syscall.SIGSTOP, syscall.SIGCONT, syscall.SIGKILL:
		return signalTree(run, sig)
	default:
		return run.signal(sig)
	}
}

func (l *local) wait(ctx context.Context) error {
	run := l.current()
	if run == nil {
		return nil
	}
	return run.waitEnd(ctx)
}

func (l *local) tool(ctx context.Context, args ...string) (string, error) {
	cmd := l.tools(ctx, args...)
	output, err := cmd.CombinedOutput()
	if err != nil {
		return string(output), fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(output)))
	}
	return string(output), nil
}

func (l *local) pid() int {
	if run := l.current(); run != nil && !run.ended.Load() {
		return run.pid()
	}
	return 0
}

func (l *local) log(context.Context) string {
	return tail(l.logFile, 4096)
}

func (l *local) close(ctx context.Context) error {
	var errs []error
	if run := l.current(); run != nil {
		_ = l.signal(ctx, syscall.SIGKILL)
		errs = append(errs, run.waitEnd(ctx))
	}
	for _, helper := range l.helpers {
		_ = helper.signalGroup(syscall.SIGKILL)
		errs = append(errs, helper.waitEnd(ctx))
	}
	errs = append(errs, os.RemoveAll(l.folder))
	return errors.Join(errs...)
}

// server is what the servers of both kinds have.
type server struct {
	// Version is the server's own version, such as "15.18".
	Version string
	// Way is how the server was provided.
	Way Way

	address *url.URL // of the database or virtual host that exists from the start
	runner  runner
}

// Addr returns the server's host:port, for a [Proxy].
func (s *server) Addr() string { return s.address.Host }

// PID returns the id of the server's main process, or 0 if it is not running or not on this machine.
func (s *server) PID() int { return s.runner.pid() }

// Log returns the end of the server's log.
func (s *server) Log(ctx context.Context) string { return s.runner.log(ctx) }

// Kill sends SIGKILL to all processes of the server, and waits until they have ended.
func (s *server) Kill(ctx context.Context) error { return s.end(ctx, syscall.SIGKILL) }

// Pause stops every process of the server (SIGSTOP): connections stay open and nothing answers.
func (s *server) Pause(ctx context.Context) error { return s.runner.signal(ctx, syscall.SIGSTOP) }

// Resume ends a Pause.
func (s *server) Resume(ctx context.Context) error { return s.runner.signal(ctx, syscall.SIGCONT) }

// end sends a signal and waits until the server has ended.
func (s *server) end(ctx context.Context, sig syscall.Signal) error {
	ctx, cancel := context.WithTimeoutCause(ctx, endTimeout, fmt.Errorf("still there after %s", endTimeout))
	defer cancel()
	err := s.runner.signal(ctx, sig)
	if err == nil {
		err = s.runner.wait(ctx)
	}
	if err != nil {
		return fmt.Errorf("end the %s server at %s: %w", s.address.Scheme, s.Addr(), err)
	}
	return nil
}

// tail returns the end of a file, for error messages.
func tail(path string, size int) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	if len(content) > size {
		content = content[len(content)-size:]
	}
	return strings.TrimSpace(string(content))
}

// startReady starts the server and waits until connect succeeds. It starts a server again that ends at once: after a
// kill, the operating system may need time to release memory and ports.
func (s *server) startReady(ctx context.Context, connect func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready within %s", startTimeout))
	defer cancel()
	var err error
	for range 3 {
		if err = s.runner.start(ctx); err != nil {
			break
		}
		if err = waitReady(ctx, s.runner, connect); err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("start the %s server: %w; its log ends:\n%s",
			s.address.Scheme, err, s.Log(context.WithoutCancel(ctx)))
	}
	return nil
}

func waitReady(ctx context.Context, r runner, connect func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if r.wait(ctx) == nil {
			cancel(errors.New("the server ended while it was starting"))
		}
	}()
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 20*time.Millisecond, 250*time.Millisecond
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		return struct{}{}, connect(ctx)
	}, backoff.WithBackOff(pause), backoff.WithMaxElapsedTime(2*startTimeout)) // the context ends earlier
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	cancel(nil)
	<-ended
	return err
}

package services

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
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

// errNotOurs is returned if a test wants to stop or configure a server that this process did not start from programs.
var errNotOurs = errors.New("only a private server can be controlled")

// server is what the servers of both kinds have.
type server struct {
	// Version is the server's own version, such as "15.18".
	Version string
	// Way is how the server was provided.
	Way Way

	address *url.URL                    // of the database or virtual host that exists from the start
	remove  func(context.Context) error // removes a container

	// These are for a server that runs from this machine's programs.
	folder  string           // private to this server, removed by close
	command func() *exec.Cmd // returns a new command that starts the server
	helpers []*process       // processes that the server needs, from the first start to close

	mu  sync.Mutex
	run *process // the current or last run
}

// Addr returns the server's host:port, for a [Proxy].
func (s *server) Addr() string { return s.address.Host }

// running returns the process of the server, or nil if it is not running or not started here.
func (s *server) running() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == nil || s.run.ended.Load() {
		return nil
	}
	return s.run
}

// PID returns the id of the server's main process, or 0 if it is not running or not on this machine.
func (s *server) PID() int {
	if run := s.running(); run != nil {
		return run.pid()
	}
	return 0
}

// Log returns the end of the server's log.
func (s *server) Log(context.Context) string {
	if s.folder == "" {
		return ""
	}
	const size = 4096
	content, err := os.ReadFile(s.logFile())
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(content[max(0, len(content)-size):]))
}

// logFile gets standard output and error of every run.
func (s *server) logFile() string { return filepath.Join(s.folder, "server.log") }

// Kill sends SIGKILL to all processes of the server, and waits until they have ended.
func (s *server) Kill(ctx context.Context) error { return s.end(ctx, syscall.SIGKILL) }

// Pause stops every process of the server (SIGSTOP): connections stay open and nothing answers.
func (s *server) Pause(context.Context) error { return s.signal(syscall.SIGSTOP) }

// Resume ends a Pause.
func (s *server) Resume(context.Context) error { return s.signal(syscall.SIGCONT) }

// signal sends SIGSTOP, SIGCONT and SIGKILL to every process of the server, other signals to its main process.
func (s *server) signal(sig syscall.Signal) error {
	if s.command == nil {
		return errNotOurs
	}
	run := s.running()
	if run == nil {
		return errNotRunning
	}
	switch sig {
	case syscall.SIGSTOP, syscall.SIGCONT, syscall.SIGKILL:
		return signalTree(run, sig)
	default:
		return run.signal(sig)
	}
}

func (s *server) end(ctx context.Context, sig syscall.Signal) error {
	ctx, cancel := context.WithTimeoutCause(ctx, endTimeout, fmt.Errorf("still there after %s", endTimeout))
	defer cancel()
	err := s.signal(sig)
	if err == nil {
		err = s.run.waitEnd(ctx)
	}
	if err != nil {
		return fmt.Errorf("end the %s server at %s: %w", s.address.Scheme, s.Addr(), err)
	}
	return nil
}

// startReady starts the server and waits until connect succeeds. It starts a server again that ends at once: after a
// kill, the operating system may need time to release memory and ports.
func (s *server) startReady(ctx context.Context, connect func(context.Context) error) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready within %s", startTimeout))
	defer cancel()
	switch s.Way {
	case Environment:
		return connect(ctx)
	case Containers:
		return s.waitReady(ctx, connect)
	}
	for range 3 {
		if err = s.start(); err != nil {
			break
		}
		if err = s.waitReady(ctx, connect); err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("start the %s server: %w; its log ends:\n%s", s.address.Scheme, err, s.Log(ctx))
	}
	return nil
}

func (s *server) start() error {
	if s.running() != nil {
		return errors.New("the server is running already")
	}
	run, err := s.startLogged(s.command())
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.run = run
	return nil
}

// startLogged starts cmd with its output appended to the log. A pipe would not do: a child that outlives the server
// could keep it open, and Wait would wait for it.
func (s *server) startLogged(cmd *exec.Cmd) (*process, error) {
	output, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the server's log: %w", err)
	}
	defer func() { _ = output.Close() }()
	cmd.Stdout, cmd.Stderr = output, output
	return startProcess(cmd, s.folder)
}

func (s *server) waitReady(ctx context.Context, connect func(context.Context) error) error {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 20*time.Millisecond, 250*time.Millisecond
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := connect(ctx)
		if err != nil && s.Way == Local && s.running() == nil {
			err = backoff.Permanent(fmt.Errorf("the server ended while it was starting: %w", err))
		}
		return struct{}{}, err
	}, backoff.WithBackOff(pause))
	return err
}

// close ends the server and removes its data. It can be called twice: by a test, and again after all tests.
func (s *server) close(ctx context.Context) error {
	if s.remove != nil {
		return s.remove(ctx)
	}
	var errs []error
	if s.running() != nil {
		errs = append(errs, s.Kill(ctx))
	}
	for _, helper := range s.helpers {
		_ = helper.signalGroup(syscall.SIGKILL)
		errs = append(errs, helper.waitEnd(ctx))
	}
	return errors.Join(append(errs, os.RemoveAll(s.folder))...)
}

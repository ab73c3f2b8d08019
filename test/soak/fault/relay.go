package fault

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// Relay is one `cdc-relay run` that is started, stopped, killed and paused. Its methods are safe for concurrent use.
type Relay struct {
	Name string
	// Postgres and RabbitMQ are the proxies between this relay and the servers. That of Postgres distinguishes
	// services.Replication and services.Ordinary connections.
	Postgres, RabbitMQ *services.Proxy

	world            *World
	addr             string // of its /livez
	database, broker string // addresses through the proxies

	mu  sync.Mutex
	run *relayRun // the current or last run; nil before the first start
}

// relayRun is one process of a relay.
type relayRun struct {
	cmd      *exec.Cmd
	done     chan struct{} // closed when the process has ended
	probed   chan struct{} // closed when the health checks have ended
	asked    bool          // its end is expected and no violation. Relay.mu guards this and the next fields
	paused   bool
	pauses   int // how often it was paused: a health check during a pause means nothing
	endAsked chan struct{}
}

// newRelay creates a relay and its proxies. After an error it has closed them.
func newRelay(w *World, name string) (*Relay, error) {
	port, err := services.FreePort()
	if err != nil {
		return nil, err
	}
	r := &Relay{Name: name, world: w, addr: "127.0.0.1:" + strconv.Itoa(port)}
	if r.Postgres, r.database, err = proxied(w.Database, services.PostgresKinds); err != nil {
		return nil, err
	}
	if r.RabbitMQ, r.broker, err = proxied(w.relayBroker, nil); err != nil {
		r.Postgres.Close()
		return nil, err
	}
	return r, nil
}

// Start starts the process without waiting for it. Its health is checked from then on.
func (r *Relay) Start() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.run != nil && !r.run.ended() {
		return fmt.Errorf("%s runs already", r.Name)
	}
	log, err := os.OpenFile(r.world.logFile(r.Name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", r.Name, err)
	}
	defer func() { _ = log.Close() }()
	cmd := r.command()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that Ctrl-C reaches it only through us
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", r.Name, err)
	}
	r.run = &relayRun{cmd: cmd, done: make(chan struct{}), probed: make(chan struct{}), endAsked: make(chan struct{})}
	go r.watchEnd(r.run)
	go r.probe(r.run)
	return nil
}

func (r *Relay) command() *exec.Cmd {
	w := r.world
	args := append([]string{
		"run", "--log-format", "json", "--http-addr", r.addr,
		"--table", w.Table.SQL(), "--slot", w.Slot, "--publication", w.Publication,
		"--max-in-flight", strconv.Itoa(maxInFlight), "--shutdown-timeout", shutdownTimeout.String(),
	}, w.RelayArgs...)
	cmd := exec.Command(w.Binary, args...)
	cmd.Env = relayEnvironment(r.database, r.broker)
	return cmd
}

// watchEnd waits for the process, and reports an unexpected end.
func (r *Relay) watchEnd(run *relayRun) {
	_ = run.cmd.Wait() // cmd.ProcessState has the result
	_ = syscall.Kill(-run.cmd.Process.Pid, syscall.SIGKILL)
	r.mu.Lock()
	asked := run.asked
	r.mu.Unlock()
	if !asked {
		r.violation("ended by itself: %s; its log ends:\n%s", run.cmd.ProcessState, r.logEnd())
	}
	close(run.done)
}

func (r *relayRun) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// newest returns the process if it runs, else nil.
func (r *Relay) newest() *relayRun {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.run == nil || r.run.ended() {
		return nil
	}
	return r.run
}

// Running reports whether its process exists, even if paused.
func (r *Relay) Running() bool { return r.newest() != nil }

// ask marks that the process is expected to end, and stops the health checks.
func (r *Relay) ask(run *relayRun) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !run.asked {
		run.asked = true
		close(run.endAsked)
	}
}

// stopGrace is how long a relay may take to stop beyond its --shutdown-timeout.
const stopGrace = time.Second

// Stop sends SIGTERM and waits. A late end, or an exit code other than 0, is a violation.
func (r *Relay) Stop(ctx context.Context) error {
	run := r.newest()
	if run == nil {
		return nil
	}
	r.ask(run)
	_ = r.Resume()
	began := time.Now()
	if err := run.signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop %s: %w", r.Name, err)
	}
	limit := shutdownTimeout + stopGrace
	select {
	case <-run.done:
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("stop %s: %w", r.Name, context.Cause(ctx)), r.Kill(context.WithoutCancel(ctx)))
	case <-time.After(limit):
		r.violation("has not stopped %s after SIGTERM; its goroutines are in its log",
			time.Since(began).Round(time.Millisecond))
		_ = run.signal(syscall.SIGQUIT)
		return r.Kill(ctx)
	}
	if code := run.cmd.ProcessState.ExitCode(); code != 0 {
		r.violation("ended with %s after SIGTERM; its log ends:\n%s", run.cmd.ProcessState, r.logEnd())
	}
	<-run.probed
	return nil
}

// Kill sends SIGKILL and waits until the process has ended. The process may be paused, or have ended already.
func (r *Relay) Kill(ctx context.Context) error {
	run := r.newest()
	if run == nil {
		return nil
	}
	r.ask(run)
	_ = run.signal(syscall.SIGKILL)
	select {
	case <-run.done:
		<-run.probed
		return nil
	case <-ctx.Done():
		return fmt.Errorf("kill %s: %w", r.Name, context.Cause(ctx))
	}
}

// Pause stops it with SIGSTOP: its connections stay open, and nothing answers.
func (r *Relay) Pause() error { return r.pause(true, syscall.SIGSTOP) }

// Resume ends a Pause.
func (r *Relay) Resume() error { return r.pause(false, syscall.SIGCONT) }

func (r *Relay) pause(paused bool, sig syscall.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.run == nil || r.run.ended() {
		return fmt.Errorf("%s does not run", r.Name)
	}
	r.run.paused = paused
	r.run.pauses++
	return r.run.signal(sig)
}

func (r *relayRun) signal(sig syscall.Signal) error { return r.cmd.Process.Signal(sig) }

// each calls f for all relays at the same time and waits.
func each(relays []*Relay, f func(*Relay) error) error {
	errs := make([]error, len(relays))
	var group sync.WaitGroup
	for i, relay := range relays {
		group.Go(func() { errs[i] = f(relay) })
	}
	group.Wait()
	return errors.Join(errs...)
}

func (r *Relay) violation(format string, args ...any) {
	r.world.Violation(r.Name + " " + fmt.Sprintf(format, args...))
}

// logEnd returns the end of its log, for messages.
func (r *Relay) logEnd() string {
	content, err := os.ReadFile(r.world.logFile(r.Name))
	if err != nil {
		return err.Error()
	}
	const most = 4096
	return string(content[max(0, len(content)-most):])
}

// proxied starts a proxy for a server, and returns its address with that of the proxy.
func proxied(address string, sort services.Sorter) (*services.Proxy, string, error) {
	target, err := url.Parse(address)
	if err != nil {
		return nil, "", err
	}
	proxy, err := services.StartProxy(target.Host, sort)
	if err != nil {
		return nil, "", fmt.Errorf("start a proxy: %w", err)
	}
	target.Host = proxy.Addr()
	return proxy, target.String(), nil
}

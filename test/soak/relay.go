package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cdc-relay/cdc-relay/test/program"
	"github.com/cdc-relay/cdc-relay/test/services"
)

const (
	shutdownTimeout = 30 * time.Second
	// stopGrace is how long a relay may take to stop beyond its --shutdown-timeout.
	stopGrace = time.Second
	// startupGrace is how long a new process may take to answer for the first time.
	startupGrace = 2 * time.Minute
	probeTimeout = 30 * time.Second
)

// relay is one `cdc-relay run` that is started, stopped, killed and paused.
type relay struct {
	name string
	// The proxies between this relay and the servers. That of Postgres distinguishes services.Replication and
	// services.Ordinary connections.
	postgres, rabbitMQ *services.Proxy

	world            *world
	addr             string   // of its /livez
	database, broker *url.URL // addresses through the proxies
	latest           atomic.Pointer[relayRun]
}

// relayRun is one process of a relay.
type relayRun struct {
	*program.Process
	ended    chan struct{} // closed after the process and its health checks
	expected atomic.Bool   // its end
	paused   atomic.Bool
	pauses   atomic.Int64 // how often it was paused or resumed: a health check meanwhile means nothing
	// probing ends when the end is expected, or has come.
	probing   context.Context
	endProbes context.CancelFunc
}

func newRelay(w *world, name string) (*relay, error) {
	port, err := services.FreePort()
	if err != nil {
		return nil, err
	}
	r := &relay{name: name, world: w, addr: "127.0.0.1:" + strconv.Itoa(port)}
	if r.postgres, r.database, err = proxied(w.database, services.PostgresKinds); err != nil {
		return nil, err
	}
	if r.rabbitMQ, r.broker, err = proxied(w.broker, nil); err != nil {
		r.postgres.Close()
		return nil, err
	}
	r.broker.User = url.UserPassword(relayUser, relayPassword)
	return r, nil
}

// start starts the process without waiting for it. Its health is checked from then on.
func (r *relay) start() error {
	args := append([]string{
		"run", "--log-format", "json", "--http-addr", r.addr, "--slot", slot, "--publication", slot,
		"--shutdown-timeout", shutdownTimeout.String(),
	}, r.world.relayArgs...)
	cmd := exec.Command(r.world.binary, args...)
	cmd.Env = program.Environment(
		"CDC_RELAY_DATABASE_URL="+r.database.String(), "CDC_RELAY_AMQP_URL="+r.broker.String())
	process, err := program.Start(cmd, filepath.Join(r.world.logs, r.name+".log"))
	if err != nil {
		return err
	}
	run := &relayRun{Process: process, ended: make(chan struct{})}
	run.probing, run.endProbes = context.WithCancel(context.Background())
	r.latest.Store(run)
	go func() {
		<-run.Done()
		run.endProbes()
		_ = syscall.Kill(-run.Cmd.Process.Pid, syscall.SIGKILL)
		if !run.expected.Load() {
			r.violation("ended by itself: %s; its log ends:\n%s", run.ProcessState, run.LogEnd())
		}
	}()
	go r.probe(run)
	return nil
}

// running returns the process if it runs, even if paused, else nil.
func (r *relay) running() *relayRun {
	if run := r.latest.Load(); run != nil && !run.Ended() {
		return run
	}
	return nil
}

// stop resumes it, sends SIGTERM and waits. A late end, or an exit code other than 0, is a violation.
func (r *relay) stop(ctx context.Context) error {
	run := r.running()
	if run == nil {
		return nil
	}
	run.expectEnd()
	_ = r.resume(ctx)
	if err := run.signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop %s: %w", r.name, err)
	}
	const limit = shutdownTimeout + stopGrace
	select {
	case <-run.Done():
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("stop %s: %w", r.name, context.Cause(ctx)), r.kill(context.WithoutCancel(ctx)))
	case <-time.After(limit):
		r.violation("has not stopped %s after SIGTERM; its goroutines are in its log", limit)
		_ = run.signal(syscall.SIGQUIT)
		return r.kill(ctx)
	}
	if code := run.ProcessState.ExitCode(); code != 0 {
		r.violation("ended with %s after SIGTERM; its log ends:\n%s", run.ProcessState, run.LogEnd())
	}
	<-run.ended
	return nil
}

// kill sends SIGKILL and waits until the process has ended. The process may be paused, or have ended already.
func (r *relay) kill(ctx context.Context) error {
	run := r.running()
	if run == nil {
		return nil
	}
	run.expectEnd()
	_ = run.signal(syscall.SIGKILL)
	select {
	case <-run.Done():
		<-run.ended
		return nil
	case <-ctx.Done():
		return fmt.Errorf("kill %s: %w", r.name, context.Cause(ctx))
	}
}

// pause stops it with SIGSTOP: its connections stay open, and nothing answers.
func (r *relay) pause() error { return r.setPaused(true, syscall.SIGSTOP) }

func (r *relay) resume(context.Context) error { return r.setPaused(false, syscall.SIGCONT) }

func (r *relay) setPaused(paused bool, sig syscall.Signal) error {
	run := r.running()
	if run == nil {
		return fmt.Errorf("%s does not run", r.name)
	}
	run.pauses.Add(1)
	run.paused.Store(paused)
	return run.signal(sig)
}

func (r *relayRun) signal(sig syscall.Signal) error { return r.Cmd.Process.Signal(sig) }

func (r *relayRun) expectEnd() {
	r.expected.Store(true)
	r.endProbes()
}

// probe checks the health of one process every second, until its end is expected. An answer that says it is not live,
// or no answer in time, is a violation, except while the process is paused.
func (r *relay) probe(run *relayRun) {
	defer close(run.ended)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	began, up := time.Now(), false
	for {
		select {
		case <-tick.C:
		case <-run.probing.Done():
			return
		}
		before := run.pauses.Load()
		if run.paused.Load() {
			continue
		}
		status, body, err := r.get(run.probing, "/livez", probeTimeout)
		switch {
		case run.pauses.Load() != before || run.probing.Err() != nil: // the answer means nothing
		case err == nil && status == http.StatusOK:
			up = true
		case err == nil:
			r.violation("/livez says %d: %s", status, strings.TrimSpace(body))
		case up || time.Since(began) > startupGrace:
			r.violation("/livez does not answer: %v", err)
		}
	}
}

// get asks the relay's HTTP server. Each request has its own connection, so that none survives a pause.
func (r *relay) get(ctx context.Context, path string, timeout time.Duration) (status int, body string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.addr+path, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	client := http.Client{Timeout: timeout, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(response.Body)
	return response.StatusCode, string(content), err
}

// leads reports whether the relay says that it streams, or, with --mode poll, polls.
func (r *relay) leads(ctx context.Context) bool {
	if run := r.running(); run == nil || run.paused.Load() {
		return false
	}
	_, body, err := r.get(ctx, "/livez", time.Second)
	return err == nil && (strings.Contains(body, "(streaming)") || strings.Contains(body, "(polling)"))
}

// awaitUp waits until a started relay streams or is a standby, as a rolling update does.
func (r *relay) awaitUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startupGrace,
		fmt.Errorf("%s is not ready within %s", r.name, startupGrace))
	defer cancel()
	return program.Poll(ctx, func() (bool, error) {
		status, _, err := r.get(ctx, "/readyz", time.Second)
		return err == nil && status == http.StatusOK, nil
	})
}

// awaitLeader waits until a relay streams.
func (w *world) awaitLeader(ctx context.Context) (leader *relay, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, hangTimeout, fmt.Errorf("no relay streams within %s", hangTimeout))
	defer cancel()
	err = program.Poll(ctx, func() (bool, error) {
		for _, leader = range w.relays {
			if leader.leads(ctx) {
				return true, nil
			}
		}
		return false, nil
	})
	return leader, err
}

// each calls f for all relays at the same time and waits.
func each(relays []*relay, f func(*relay) error) error {
	errs := make([]error, len(relays))
	var group sync.WaitGroup
	for i, relay := range relays {
		group.Go(func() { errs[i] = f(relay) })
	}
	group.Wait()
	return errors.Join(errs...)
}

func (r *relay) violation(format string, args ...any) {
	r.world.violation(r.name + " " + fmt.Sprintf(format, args...))
}

func killLeader(ctx context.Context, a *attempt) (fix, error) {
	leader, err := a.leader(ctx)
	if err != nil {
		return nil, err
	}
	return a.start, leader.kill(ctx)
}

func killLeaders(ctx context.Context, a *attempt) (fix, error) {
	const rounds = 3
	for range rounds {
		leader, err := a.leader(ctx)
		if err != nil {
			return a.start, err
		}
		program.Pause(ctx, a.upTo(a.hold/rounds))
		if err := errors.Join(leader.kill(ctx), leader.start()); err != nil {
			return a.start, err
		}
	}
	return nil, nil
}

func (a *attempt) shuffled() []*relay {
	relays := slices.Clone(a.relays)
	a.random.Shuffle(len(relays), func(i, j int) { relays[i], relays[j] = relays[j], relays[i] })
	return relays
}

func killStandby(ctx context.Context, a *attempt) (fix, error) {
	leader, err := a.awaitLeader(ctx)
	if err != nil {
		return nil, err
	}
	for _, relay := range a.shuffled() {
		if relay != leader && relay.running() != nil {
			a.detail = relay.name
			return a.start, relay.kill(ctx)
		}
	}
	return nil, errors.New("there is no standby")
}

func (w *world) killAll(ctx context.Context) error {
	return each(w.relays, func(relay *relay) error { return relay.kill(ctx) })
}

// stopAll also stops them in order if the run is interrupted.
func (w *world) stopAll(ctx context.Context) error {
	ctx, cancel := fixing(ctx)
	defer cancel()
	return w.stop(ctx)
}

func restartRolling(ctx context.Context, a *attempt) (fix, error) {
	orderly, cancel := fixing(ctx) // an interrupted run must not kill one
	defer cancel()
	for _, relay := range a.shuffled() {
		a.detail += relay.name + " "
		if err := errors.Join(relay.stop(orderly), a.start(orderly)); err != nil {
			return nil, err
		}
		if err := relay.awaitUp(orderly); err != nil {
			return nil, err
		}
		program.Pause(ctx, a.hold/time.Duration(len(a.relays)))
	}
	return nil, nil
}

// freezeLeader freezes the leader, half of the time for so long that another relay gets the slot.
func freezeLeader(ctx context.Context, a *attempt) (fix, error) {
	leader, err := a.leader(ctx)
	if err != nil {
		return nil, err
	}
	if err := leader.pause(); err != nil {
		return nil, err
	}
	if a.random.IntN(2) == 0 {
		const takenOver = runWalSenderTimeout + 3*time.Second
		a.detail += "for at least " + takenOver.String()
		program.Pause(ctx, takenOver-a.hold)
	}
	return leader.resume, nil
}

func freezeAll(_ context.Context, a *attempt) (fix, error) {
	return func(ctx context.Context) error {
		var errs []error
		for _, relay := range a.shuffled() {
			errs = append(errs, relay.resume(ctx))
			program.Pause(ctx, a.upTo(time.Second))
		}
		return errors.Join(errs...)
	}, each(a.relays, (*relay).pause)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/test/soak/fault"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
	"github.com/cdc-relay/cdc-relay/test/soak/load"
)

const (
	// recoveryTimeout is how long to wait after a fault for a new arrival. The verdict decides if that took too long.
	recoveryTimeout = time.Minute
	// drainQuiet is how long the outbox may stay unchanged at the end before the run gives up.
	drainQuiet = 2 * time.Minute
	// queueTimeout is how long the consumers may take to empty the queues.
	queueTimeout = 5 * time.Minute
	// endTimeout limits the rest of the end of a run, and then the stop of servers and relays.
	endTimeout = 5 * time.Minute
)

// soak is one run. Its history and the logs of its relays are files in folder.
type soak struct {
	opts     *options
	folder   string
	topology load.Topology

	world     *fault.World
	state     load.State
	history   *os.File
	recorder  *history.Recorder
	writers   *load.Writers
	consumers *load.Consumers
	notMade   []string // faults that failed

	mu       sync.Mutex
	out      io.Writer
	findings []history.Finding // what the history of messages does not show
}

// note prints a line.
func (s *soak) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintln(s.out, strings.TrimRight(fmt.Sprintf(format, args...), "\n"))
}

// violation records what no promise allows, and the history does not show: an unexpected exit, a wrong exit code, an
// unhealthy /livez, a race, a panic. It keeps the first line: the logs have the rest.
func (s *soak) violation(text string) {
	s.note("violation: %s", text)
	text, _, _ = strings.Cut(text, "\n")
	s.mu.Lock()
	defer s.mu.Unlock()
	var at time.Duration
	if s.recorder != nil {
		at = s.recorder.Now()
	}
	s.findings = append(s.findings, history.Finding{At: at, What: text})
}

// run does everything until the history is closed, and judges it. asked ends the faults; the end of ctx ends
// everything. The caller closes the world, or gives it to the next run.
func (s *soak) run(ctx context.Context, asked <-chan struct{}) (*history.Verdict, error) {
	calm, stopFaults := context.WithCancel(ctx)
	defer stopFaults()
	defer s.close() // also after a panic
	go func() {
		select {
		case <-asked:
			stopFaults()
		case <-calm.Done():
		}
	}()
	if err := s.prepare(calm); err != nil {
		return nil, err
	}
	if err := s.begin(ctx, calm); err != nil {
		return nil, err
	}
	if s.opts.runs > 0 {
		go func() {
			s.writers.Written()
			stopFaults()
		}()
	}
	s.disturb(calm)
	if err := s.end(ctx); err != nil {
		return nil, err
	}
	return s.judge()
}

// prepare starts the servers, unless an earlier run has, and creates the tables, the relays and the recorder.
func (s *soak) prepare(ctx context.Context) error {
	output, err := exec.CommandContext(ctx, s.opts.relay, "--version").Output()
	if err != nil {
		return fmt.Errorf("%s --version: %w", s.opts.relay, err)
	}
	version, _, _ := strings.Cut(string(output), "\n")
	logs := filepath.Join(s.folder, "logs")
	if err := os.MkdirAll(logs, 0o700); err != nil {
		return err
	}
	if s.history, err = os.Create(filepath.Join(s.folder, "history.jsonl")); err != nil {
		return err
	}
	s.topology = load.Topology{Prefix: "soak"}
	config := fault.Config{
		Binary: s.opts.relay, Folder: logs, RelayCount: s.opts.relays, RelayArgs: relayArgs(s.opts),
		Declare:   func(ctx context.Context, amqpURL string) error { return load.Declare(ctx, amqpURL, s.topology) },
		Violation: s.violation, Log: func(text string) { s.note("%s", text) },
	}
	if s.world == nil {
		s.note("starting the servers")
		if s.world, err = fault.NewWorld(ctx, config); err != nil {
			return err
		}
	}
	s.world.Config = config
	if err := s.world.Deploy(ctx); err != nil {
		return err
	}
	s.state = load.State{DatabaseURL: s.world.Database, Table: s.world.Table, Run: fmt.Sprint(s.opts.seed)}
	if err := s.state.CreateTables(ctx); err != nil {
		return err
	}
	versions := fmt.Sprintf("%s, Postgres %s, RabbitMQ %s", version, s.world.Postgres.Version, s.world.RabbitMQ.Version)
	s.note("%s", versions)
	recorder := history.NewRecorder(s.history, history.Run{
		Seed: s.opts.seed, Command: s.opts.command, RecoverWithin: s.opts.recoverWithin, Versions: versions,
	})
	s.mu.Lock()
	s.recorder = recorder
	s.mu.Unlock()
	return nil
}

// relayArgs makes retries end within a run. The user's flags come later and override them.
func relayArgs(o *options) []string {
	args := append([]string{"--backoff-time", "1s", "--max-backoff", "5s", "--max-retries", "5"}, o.drawn...)
	return append(args, o.relayArgs...)
}

// begin starts relays, consumers and writers. They continue after the faults.
func (s *soak) begin(ctx, calm context.Context) (err error) {
	if err := s.world.Start(); err != nil {
		return err
	}
	if _, err := s.world.AwaitLeader(calm); err != nil {
		return fmt.Errorf("wait for the first relay: %w", err)
	}
	s.consumers = load.StartConsumers(ctx, s.world.Broker, s.topology, s.recorder)
	s.writers, err = load.StartWriters(ctx, load.WriterOptions{
		DatabaseURL: s.world.Database, Table: s.world.Table, Run: s.state.Run, Seed: uint64(s.opts.seed),
		Rate: s.opts.rate, Writers: writers, Topology: s.topology, Transactions: s.opts.transactions(),
	}, s.recorder)
	return err
}

// disturb causes faults until the duration is over or ctx ends. When it returns, all are fixed.
func (s *soak) disturb(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.duration)
	defer cancel()
	plan, ids := newPlanner(s.opts), 0
	if len(plan.all) == 0 {
		<-ctx.Done()
		return
	}
	// It begins with a pause, to have data without faults for comparison.
	for rounds := 0; s.opts.rounds == 0 || rounds < s.opts.rounds; rounds++ {
		if !load.Pause(ctx, s.opts.pause) {
			return
		}
		faults := plan.next()
		recovered := s.make(ctx, faults, ids)
		ids += len(faults)
		s.awaitRecovery(ctx, recovered)
	}
}

// make causes the faults of a round at the same time, and waits until they are fixed. recovered is closed when a
// message arrives that was committed after that.
func (s *soak) make(ctx context.Context, r round, ids int) (recovered <-chan struct{}) {
	var group sync.WaitGroup
	var mu sync.Mutex
	for i, f := range r {
		id, name := ids+i+1, f.fault.Name
		s.note("fault %d: %s for %s", id, name, f.hold)
		s.recorder.FaultBegan(s.world.Tell(id, f.fault, "for "+f.hold.String()))
		group.Go(func() {
			began := time.Now()
			detail, err := f.fault.Run(ctx, s.world, rand.New(rand.NewPCG(f.seed, 0)), f.hold)
			mu.Lock()
			defer mu.Unlock()
			s.recorder.FaultHealed(id)
			recovered = s.recorder.Recovered()
			s.note("fault %d: %s, fixed after %s: %s", id, name, history.Short(time.Since(began)), detail)
			if err != nil && ctx.Err() == nil {
				s.note("it failed to run: %s", err)
				s.notMade = append(s.notMade, fmt.Sprintf("%s: %s", name, err))
			}
		})
	}
	group.Wait()
	return recovered
}

func (s *soak) awaitRecovery(ctx context.Context, recovered <-chan struct{}) {
	healed := time.Now()
	timeout := time.NewTimer(recoveryTimeout)
	defer timeout.Stop()
	select {
	case <-recovered:
		s.note("recovered in %s", history.Short(time.Since(healed)))
	case <-timeout.C:
		s.note("nothing new has arrived for %s", recoveryTimeout)
	case <-ctx.Done():
	}
}

// end waits until everything has arrived, and records the final state. Problems of the relay show in the history and
// are not errors here.
func (s *soak) end(ctx context.Context) error {
	s.note("stopping the writers")
	if s.opts.runs > 0 {
		s.writers.Written()
	}
	s.writers.Stop()
	if err := s.world.Start(); err != nil {
		return err
	}
	s.note("waiting for the outbox to drain")
	began := time.Now()
	if err := s.state.AwaitDrained(ctx, drainQuiet); err != nil {
		s.note("%s", err)
	}
	if took := time.Since(began); s.opts.drainWithin > 0 && took > s.opts.drainWithin {
		s.violation("the outbox took " + history.Short(took) + " to empty at the end")
	}
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	s.awaitQueues(ctx)
	ending, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	s.note("stopping the relays")
	if err := s.world.Stop(ending); err != nil {
		return err
	}
	s.awaitQueues(ending) // the last messages from the relays
	s.consumers.Stop()
	s.note("reading the final state")
	if err := s.state.Record(ending, s.recorder); err != nil {
		return err
	}
	return errors.Join(s.readLogs(), s.recorder.Close())
}

func (s *soak) awaitQueues(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, queueTimeout)
	defer cancel()
	if err := load.AwaitEmptyQueues(ctx, s.world.Broker, s.topology); err != nil {
		s.note("%s", err)
	}
}

// readLogs searches the logs for fatal errors of the Go runtime.
func (s *soak) readLogs() error {
	logs, err := filepath.Glob(filepath.Join(s.folder, "logs", "*.log"))
	fatal := regexp.MustCompile(`(?m)^(WARNING: DATA RACE|panic: .*|fatal error: .*)`)
	for _, log := range logs {
		text, failed := os.ReadFile(log)
		for _, line := range fatal.FindAll(text, -1) {
			s.violation(fmt.Sprintf("%s has: %s", filepath.Base(log), line))
		}
		err = errors.Join(err, failed)
	}
	return err
}

// judge checks the history, and adds what it does not show.
func (s *soak) judge() (*history.Verdict, error) {
	return reread(s.history, func(lines io.Reader) (*history.Verdict, error) {
		return history.Check(lines, s.findings...)
	})
}

func reread[T any](file *os.File, read func(io.Reader) (T, error)) (result T, err error) {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return result, fmt.Errorf("read the history again: %w", err)
	}
	if result, err = read(file); err != nil {
		return result, fmt.Errorf("check the history: %w", err)
	}
	return result, nil
}

// close stops everything that still runs, in an order in which nothing waits for a stopped part.
func (s *soak) close() {
	if s.writers != nil {
		s.writers.Stop()
	}
	if s.consumers != nil {
		s.consumers.Stop()
	}
	if s.recorder != nil {
		_ = s.recorder.Close()
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/test/soak/fault"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
	"github.com/cdc-relay/cdc-relay/test/soak/load"
	"github.com/cdc-relay/cdc-relay/test/soak/subject"
)

const (
	// drainQuiet is how long the outbox may stay unchanged at the end before the run gives up.
	drainQuiet = 2 * time.Minute
	// queueTimeout is how long the consumers may take to empty the queues.
	queueTimeout = 5 * time.Minute
	// endTimeout limits the rest of the end of a run.
	endTimeout = 5 * time.Minute
	// closeTimeout limits the stop of servers and relays.
	closeTimeout = 5 * time.Minute
)

// soak is one run.
type soak struct {
	opts     *options
	files    *files
	screen   *screen
	topology load.Topology
	conduct  conduct
	// violation is called for what the history does not show. peer is the program in place of cdc-relay, or empty.
	violation func(text string)
	peer      string

	world     *fault.World
	state     load.State
	recorder  *history.Recorder
	watch     *watch
	writers   *load.Writers
	consumers *load.Consumers
	progress  *progress
	notMade   []string // faults that failed
}

func (s *soak) init(files *files, screen *screen) {
	s.files, s.screen, s.topology = files, screen, load.Topology{Prefix: "soak", Quorum: s.opts.cluster}
	s.conduct.tell = func(text string) { screen.note("violation: " + text) }
	s.violation = s.conduct.add
	if s.opts.peer() {
		s.violation, s.peer = screen.note, s.opts.relay // it promises nothing of this
	}
}

// run does everything until the history is closed. asked ends the faults; the end of ctx ends everything. The caller
// closes the world, or gives it to the next run.
func (s *soak) run(ctx context.Context, asked <-chan struct{}, run history.Run) error {
	calm, stopFaults := context.WithCancel(ctx)
	defer stopFaults()
	stopWaiting := make(chan struct{})
	defer close(stopWaiting)
	go func() {
		select {
		case <-asked:
			stopFaults()
		case <-stopWaiting:
		}
	}()
	defer s.close() // also after a panic
	if err := s.prepare(calm, run); err != nil {
		return err
	}
	if err := s.begin(ctx, calm); err != nil {
		return err
	}
	if s.opts.runs > 0 {
		go func() {
			s.writers.Written()
			stopFaults()
		}()
	}
	s.disturb(calm)
	return s.end(ctx)
}

// prepare starts the servers, unless an earlier run has, and creates the tables, the relays and the recorder.
func (s *soak) prepare(ctx context.Context, run history.Run) error {
	version, err := subject.Version(ctx, s.opts.relay, s.opts.peer())
	if err != nil {
		return err
	}
	config := fault.Config{
		Binary: s.opts.relay, Peer: s.peer, Folder: s.files.logs,
		RelayCount: s.opts.relays, RelayArgs: relayArgs(s.opts),
		Standby: s.opts.standby, Cluster: s.opts.cluster,
		Declare: func(ctx context.Context, amqpURL string) error { return load.Declare(ctx, amqpURL, s.topology) },
		Poison: func(ctx context.Context, bodyBytes int) error {
			return load.Poison(ctx, s.writerOptions(), bodyBytes, s.watch)
		},
		Violation: s.violation, Log: s.screen.note,
	}
	if s.world == nil {
		s.screen.note("starting the servers")
		if s.world, err = fault.NewWorld(ctx, config); err != nil {
			return err
		}
	}
	s.world.Config = config
	if err := s.world.Deploy(ctx); err != nil {
		return err
	}
	s.state = load.State{DatabaseURL: s.world.Database, Table: s.world.Table, Run: fmt.Sprint(s.opts.seed)}
	if s.opts.peer() {
		s.state.Form = s.opts.form()
	}
	if err := s.state.CreateTables(ctx); err != nil {
		return err
	}
	run.Versions = map[string]string{s.opts.program(): version}
	if err := s.serverVersions(ctx, run.Versions); err != nil {
		return err
	}
	s.recorder = history.NewRecorder(s.files.history, run)
	s.conduct.clock(s.recorder.Now)
	s.watch = newWatch(s.recorder)
	return nil
}

func (s *soak) serverVersions(ctx context.Context, versions map[string]string) error {
	var text string
	if err := s.world.Query(ctx, &text, `SELECT current_setting('server_version')`); err != nil {
		return fmt.Errorf("ask Postgres for its version: %w", err)
	}
	versions["Postgres"], _, _ = strings.Cut(text, " ")
	version, err := load.BrokerVersion(ctx, s.world.Broker)
	versions["RabbitMQ"] = version
	return err
}

// relayArgs makes retries end within a run. The user's flags come later and override them.
func relayArgs(o *options) []string {
	args := append([]string{"--backoff-time", "1s", "--max-backoff", "5s", "--max-retries", "5"}, o.drawn...)
	return append(args, o.relayArgs...)
}

func (s *soak) writerOptions() load.WriterOptions {
	return load.WriterOptions{
		DatabaseURL: s.world.Database, Table: s.world.Table, Run: s.state.Run, Seed: uint64(s.opts.seed),
		Rate: s.opts.rate, Writers: s.opts.writers, Topology: s.topology, Form: s.opts.form(),
		Transactions: s.opts.transactions(),
	}
}

// begin starts relays, consumers and writers. They continue after the faults.
func (s *soak) begin(ctx, calm context.Context) (err error) {
	if err := s.world.Start(); err != nil {
		return err
	}
	if _, err := s.world.AwaitLeader(calm); err != nil {
		return fmt.Errorf("wait for the first relay: %w", err)
	}
	s.consumers = load.StartConsumers(ctx, load.ConsumerOptions{
		AMQPURL: s.world.Broker, Topology: s.topology, BodyOnly: s.opts.subject != nil,
	}, s.watch)
	s.writers, err = load.StartWriters(ctx, s.writerOptions(), s.watch)
	s.progress = startProgress(s)
	return err
}

// end waits until everything has arrived, and records the final state. Problems of the relay show in the history and
// are not errors here.
func (s *soak) end(ctx context.Context) error {
	s.screen.note("stopping the writers")
	if s.opts.runs > 0 {
		s.writers.Written()
	}
	s.writers.Stop()
	if err := s.world.Start(); err != nil {
		return err
	}
	s.screen.note("waiting for the outbox to drain")
	began := time.Now()
	if err := s.state.AwaitDrained(ctx, drainQuiet); err != nil {
		s.screen.note(err.Error())
	}
	if took := time.Since(began); s.opts.drainWithin > 0 && took > s.opts.drainWithin {
		s.conduct.add("the outbox took " + short(took) + " to empty at the end")
	}
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	s.awaitQueues(ctx)
	ending, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	s.screen.note("stopping the relays")
	if err := s.world.Stop(ending); err != nil {
		return err
	}
	s.awaitQueues(ending) // the last messages from the relays
	s.consumers.Stop()
	s.screen.note("reading the final state")
	if err := s.state.Record(ending, s.recorder); err != nil {
		return err
	}
	s.progress.stop()
	if err := s.conduct.readLogs(s.files.logs); err != nil {
		return err
	}
	return s.recorder.Close()
}

func (s *soak) awaitQueues(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, queueTimeout)
	defer cancel()
	if err := load.AwaitEmptyQueues(ctx, s.world.Broker, s.topology); err != nil {
		s.screen.note(err.Error())
	}
}

// close stops everything that still runs, in an order in which nothing waits for a stopped part.
func (s *soak) close() {
	if s.progress != nil {
		s.progress.stop()
	}
	if s.recorder != nil {
		defer func() { _ = s.recorder.Close() }()
	}
	if s.writers != nil {
		s.writers.Stop()
	}
	if s.consumers != nil {
		s.consumers.Stop()
	}
}

// closeWorld ends the servers and the relays.
func (s *soak) closeWorld(ctx context.Context) error {
	if s.world == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	return s.world.Close(ctx)
}

// unmade returns an error if faults were not made: the run does not prove what its plan says.
func (s *soak) unmade() error {
	if len(s.notMade) == 0 {
		return nil
	}
	return notRunError{
		fmt.Errorf("nothing was found, but faults were not made: %s", strings.Join(s.notMade, "; ")),
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/soak/fault"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
	"github.com/cdc-relay/cdc-relay/test/soak/load"
)

const (
	// drainQuiet is how long nothing may leave the outbox at the end.
	drainQuiet = 2 * time.Minute
	// queueTimeout is how long the consumers may take for what is left in the queues.
	queueTimeout = 5 * time.Minute
	// endTimeout bounds the end of a run beyond that.
	endTimeout = 5 * time.Minute
	// closeTimeout bounds the end of servers and relays.
	closeTimeout = 5 * time.Minute
)

// soak is one run.
type soak struct {
	opts     *options
	files    *files
	screen   *screen
	topology load.Topology
	table    outbox.Table
	conduct  conduct

	world     *fault.World
	state     load.State
	recorder  *history.Recorder
	watch     *watch
	writers   *load.Writers
	consumers *load.Consumers
	progress  *progress
	notMade   []string // faults that could not be made
}

func newSoak(o *options, files *files, screen *screen) *soak {
	s := &soak{opts: o, files: files, screen: screen, table: outbox.Table{Schema: "public", Name: "outbox"}}
	if o.databaseURL != "" {
		s.table = ownTable()
	}
	prefix := "soak"
	if o.amqpURL != "" {
		prefix = fmt.Sprintf("soak.%d", time.Now().Unix()) // nothing of a run before is to be found there
	}
	s.topology = load.DefaultTopology(prefix)
	s.topology.Quorum = o.quorum
	s.conduct.tell = func(text string) { screen.note("violation: " + text) }
	return s
}

// run does everything up to the closed history. asked ends the faults; the end of ctx ends everything.
func (s *soak) run(ctx context.Context, asked <-chan struct{}, run history.Run) (err error) {
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
	defer func() { err = errors.Join(err, s.close(ctx)) }() // also where something panics
	if err := s.prepare(calm, run); err != nil {
		return err
	}
	if err := s.begin(ctx, calm); err != nil {
		return err
	}
	s.disturb(calm)
	return s.end(ctx)
}

// prepare provides the servers, the tables, the recorder and the backlog.
func (s *soak) prepare(ctx context.Context, run history.Run) error {
	version, err := relayVersion(ctx, s.opts.relay)
	if err != nil {
		return err
	}
	if err := s.clean(ctx); err != nil {
		return err
	}
	s.screen.note("starting the servers")
	s.world, err = fault.NewWorld(ctx, fault.Config{
		Binary: s.opts.relay, Folder: s.files.logs, DatabaseURL: s.opts.databaseURL, AMQPURL: s.opts.amqpURL,
		Table: s.table, Slot: soakSlot, Publication: soakSlot, RelayCount: s.opts.relays, RelayArgs: relayArgs(s.opts),
		Standby: s.opts.standby, Cluster: s.opts.cluster,
		Declare: func(ctx context.Context, amqpURL string) error { return load.Declare(ctx, amqpURL, s.topology) },
		Poison: func(ctx context.Context, bodyBytes int) error {
			return load.Poison(ctx, s.writerOptions(), bodyBytes, s.watch)
		},
		Violation: s.conduct.add, Log: s.screen.note,
	})
	if err != nil {
		return err
	}
	s.state = load.State{DatabaseURL: s.world.Database, Table: s.table, Run: fmt.Sprint(s.opts.seed)}
	if err := s.state.CreateTables(ctx); err != nil {
		return err
	}
	run.Versions = map[string]string{"cdc-relay": version}
	if err := s.serverVersions(ctx, run.Versions); err != nil {
		return err
	}
	s.recorder = history.NewRecorder(s.files.history, run)
	s.world.Recorder = s.recorder
	s.conduct.clock(s.recorder.Now)
	s.watch = newWatch(s.recorder)
	if s.opts.backlog > 0 {
		s.screen.note(fmt.Sprintf("writing %d rows that wait", s.opts.backlog))
		return load.Backlog(ctx, s.writerOptions(), s.opts.backlog, s.watch)
	}
	return nil
}

// clean drops the tables on a server of the user's own: those of a run before, and of this one where it has passed.
func (s *soak) clean(ctx context.Context) error {
	if s.opts.databaseURL == "" {
		return nil
	}
	state := load.State{DatabaseURL: s.opts.databaseURL, Table: s.table}
	return state.DropTables(ctx)
}

func (s *soak) serverVersions(ctx context.Context, versions map[string]string) error {
	var text string
	if err := s.world.QueryRow(ctx, `SELECT current_setting('server_version')`).Scan(&text); err != nil {
		return fmt.Errorf("ask Postgres for its version: %w", err)
	}
	versions["Postgres"], _, _ = strings.Cut(text, " ")
	version, err := load.BrokerVersion(ctx, s.world.Broker)
	versions["RabbitMQ"] = version
	return err
}

// relayArgs makes retries end within a run. What the user gives comes later, and so counts.
func relayArgs(o *options) []string {
	return append([]string{"--backoff-time", "1s", "--max-backoff", "5s", "--max-retries", "5"}, o.relayArgs...)
}

func (s *soak) writerOptions() load.WriterOptions {
	return load.WriterOptions{
		DatabaseURL: s.world.Database, Table: s.table, Run: s.state.Run, Seed: uint64(s.opts.seed), Rate: s.opts.rate,
		Writers: s.opts.writers, KeysPerWriter: 16, Topology: s.topology,
	}
}

// begin starts relays, consumers and writers. They live on when the faults end.
func (s *soak) begin(ctx, calm context.Context) (err error) {
	if err := s.world.Start(); err != nil {
		return err
	}
	if _, err := s.world.AwaitLeader(calm); err != nil {
		return fmt.Errorf("wait for the first relay: %w", err)
	}
	s.consumers = load.StartConsumers(ctx, load.ConsumerOptions{AMQPURLs: s.brokers(), Topology: s.topology}, s.watch)
	s.writers, err = load.StartWriters(ctx, s.writerOptions(), s.watch)
	s.progress = startProgress(s)
	return err
}

func (s *soak) brokers() []string { return []string{s.world.Broker} }

// end waits until everything has arrived, and takes the final state. What goes wrong with the relay on the way shows in
// the history, and is not an error here.
func (s *soak) end(ctx context.Context) error {
	s.progress.phase("the writers end")
	s.writers.Stop()
	if err := s.world.Start(); err != nil {
		return err
	}
	s.progress.phase("what is under way comes to its end")
	if err := s.state.AwaitDrained(ctx, drainQuiet, s.progress.drained); err != nil {
		s.screen.note(err.Error())
	}
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	s.awaitQueues(ctx)
	ending, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	s.progress.phase("the relays end")
	if err := s.world.Stop(ending); err != nil {
		return err
	}
	s.awaitQueues(ending) // what the relays have sent last
	s.consumers.Stop()
	s.progress.phase("the final state is read")
	if err := s.state.Record(ending, s.recorder); err != nil {
		return errors.Join(err, s.recorder.CloseEarly(err.Error()))
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

// close ends whatever runs still, in an order in which nothing waits for what is gone.
func (s *soak) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if s.progress != nil {
		s.progress.stop()
	}
	if s.recorder != nil {
		defer func() { _ = s.recorder.CloseEarly("the run was ended") }() // does nothing to one that was closed
	}
	if s.writers != nil {
		s.writers.Stop()
	}
	if s.consumers != nil {
		s.consumers.Stop()
	}
	if s.world == nil {
		return nil
	}
	var errs []error
	if s.opts.amqpURL != "" {
		errs = append(errs, load.Delete(ctx, s.world.Broker, s.topology))
	}
	return errors.Join(append(errs, s.world.Close(ctx))...)
}

// unmade is the error of a run in which faults could not be made: it does not prove what its plan says.
func (s *soak) unmade() error {
	if len(s.notMade) == 0 {
		return nil
	}
	return notRunError{fmt.Errorf("nothing was found, but %d faults could not be made: %s", len(s.notMade), strings.Join(s.notMade, "; "))}
}

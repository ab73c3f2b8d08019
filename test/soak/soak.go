// Package soak checks the promises of docs/guarantees.md: it writes and consumes messages, causes faults, and checks
// the history of what happened. Writers and consumers never give up: servers go down and come back during a run.
package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/test/program"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

// Options are the options of a run.
type Options struct {
	Duration      time.Duration
	Seed          int64
	Rate          float64 // messages a second
	Relays        int
	Relay         string // the program
	Rounds        int    // 0: as many as the duration allows
	Runs          int    // 0: one, with the settings below; else each run draws Relays and settings
	Faults        []Fault
	Hold, Pause   time.Duration
	Overlap       float64 // 0 to 1
	RecoverWithin time.Duration
	DrainWithin   time.Duration // 0: no limit
	RelayArgs     []string
	Command       string // the command line that repeats the run
}

const (
	// drainQuiet is how long the outbox may stay unchanged at the end before the run gives up.
	drainQuiet = 2 * time.Minute
	// endTimeout limits the rest of the end of a run, and then the stop of servers and relays.
	endTimeout = 5 * time.Minute
)

// ErrViolated means that the printed report has violations.
var ErrViolated = errors.New("a promise was broken")

// Run makes one run, or several with other settings of the relay. The end of calm ends the
// faults; the end of ctx ends everything.
func Run(ctx, calm context.Context, o Options) (err error) {
	folder, err := os.MkdirTemp("", "cdc-relay-soak-")
	if err != nil {
		return err
	}
	fmt.Printf("seed %d\n", o.Seed)
	w := &world{binary: o.Relay}
	defer func() { // also after a panic
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
		defer cancel()
		if err = errors.Join(err, w.close(ctx)); err == nil {
			_ = os.RemoveAll(folder)
			return
		}
		fmt.Printf("histories and logs: %s\nto run it again: %s\n", folder, o.Command)
	}()
	random := rand.New(rand.NewPCG(uint64(o.Seed), 1<<32)) // faults and writers use smaller second seeds
	for n := range max(o.Runs, 1) {
		s := &run{Options: o, world: w, folder: filepath.Join(folder, fmt.Sprint("run-", n+1))}
		if o.Runs > 0 {
			s.draw(random, n)
			fmt.Printf("run %d: relays %d, %s\n", n+1, s.Relays, strings.Join(s.RelayArgs, " "))
		}
		if err := s.make(ctx, calm); err != nil {
			return err
		}
		if calm.Err() != nil {
			break
		}
	}
	return nil
}

// run is one run. Its history and the logs of its relays are files in folder.
type run struct {
	Options
	*world
	folder   string
	recorder *history.Recorder
	notMade  []string // faults that failed

	mu       sync.Mutex
	findings []history.Finding // what the history of messages does not show
}

// draw draws the settings of one run of several. Modes alternate. The user's flags come later and override them.
func (s *run) draw(random *rand.Rand, n int) {
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	s.Relays = 1 + random.IntN(3)
	drawn := []string{
		"--mode", []string{"auto", "poll"}[(uint64(s.Seed)+uint64(n))%2],
		"--max-in-flight", pick("10", "100", "2000"),
		"--poll-interval", pick("100ms", "300ms", "1s"),
		"--backoff-time", pick("50ms", "300ms"), "--max-backoff", "500ms", "--max-retries", "2",
	}
	if random.IntN(2) == 0 {
		drawn = append(drawn, "--setup", "--keep-published", "24h")
	}
	s.RelayArgs = append(drawn, s.RelayArgs...)
}

// make makes the run, judges it, and prints the report.
func (s *run) make(ctx, calm context.Context) error {
	if err := os.MkdirAll(s.folder, 0o700); err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(s.folder, "history.jsonl"))
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	s.recorder = history.NewRecorder(file)
	defer func() { _ = s.recorder.Close() }()
	if err := s.prepare(calm); err != nil {
		return err
	}
	if err := s.work(ctx, calm); err != nil {
		return err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	verdict, err := history.Check(file, s.findings...)
	if err != nil {
		return fmt.Errorf("check the history: %w", err)
	}
	fmt.Print(verdict.Text)
	switch {
	case verdict.Result == history.Fail:
		return ErrViolated
	case verdict.Result == history.Incomplete:
		return errors.New("nothing is proved")
	case len(s.notMade) > 0: // the run does not prove what its plan says
		return fmt.Errorf("nothing was found, but faults were not made: %s", strings.Join(s.notMade, "; "))
	}
	return nil
}

// note prints a line.
func (s *run) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Println(strings.TrimRight(fmt.Sprintf(format, args...), "\n"))
}

// noteViolation records what no promise allows, and the history does not show: an unexpected exit, a wrong exit code,
// an unhealthy /livez, a race, a panic. It keeps the first line: the logs have the rest.
func (s *run) noteViolation(text string) {
	s.note("violation: %s", text)
	text, _, _ = strings.Cut(text, "\n")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.findings = append(s.findings, history.Finding{At: s.recorder.Now(), What: text})
}

// prepare starts the servers, unless an earlier run has, and creates the tables and the relays.
func (s *run) prepare(ctx context.Context) error {
	if s.postgres == nil {
		s.note("starting the servers")
		if err := s.startServers(ctx, func(text string) { s.note("%s", text) }); err != nil {
			return err
		}
	}
	// Retries end within a run.
	s.relayArgs = append([]string{"--backoff-time", "1s", "--max-backoff", "5s", "--max-retries", "5"}, s.RelayArgs...)
	s.logs, s.violation = s.folder, s.noteViolation
	if err := s.deploy(ctx, s.Relays); err != nil {
		return err
	}
	s.note("Postgres %s, RabbitMQ %s", s.postgres.Version, s.rabbitMQ.Version)
	return nil
}

// work writes, causes faults, and waits until everything has arrived.
func (s *run) work(ctx, calm context.Context) error {
	if err := s.start(calm); err != nil {
		return err
	}
	if _, err := s.awaitLeader(calm); err != nil {
		return fmt.Errorf("wait for the first relay: %w", err)
	}
	stopConsumers := startConsumers(ctx, s.broker, s.recorder)
	defer stopConsumers()
	stopWriters, err := startWriters(ctx, s.database, uint64(s.Seed), s.Rate, s.recorder)
	if err != nil {
		return err
	}
	defer stopWriters()
	s.disturb(calm)
	s.note("stopping the writers")
	stopWriters()
	if err := s.end(ctx); err != nil {
		return err
	}
	stopConsumers()
	s.note("reading the final state")
	if err := s.recordTables(ctx, s.recorder); err != nil {
		return err
	}
	return errors.Join(s.readLogs(), s.recorder.Close())
}

// disturb causes faults until the duration is over or calm ends. When it returns, all are fixed.
func (s *run) disturb(calm context.Context) {
	ctx, cancel := context.WithTimeout(calm, s.Duration)
	defer cancel()
	plan, ids := newDeck(&s.Options), 0
	if len(plan.all) == 0 {
		<-ctx.Done()
		return
	}
	// It begins with a pause, to have data without faults for comparison.
	for rounds := 0; (s.Rounds == 0 || rounds < s.Rounds) && program.Pause(ctx, s.Pause); rounds++ {
		faults := plan.next()
		recovery := s.makeRound(ctx, faults, ids)
		ids += len(faults)
		s.awaitRecovery(calm, recovery, faults)
	}
}

// makeRound causes the faults of a round at the same time, and waits until they are fixed. recovery is that of
// Recorder.Recovery.
func (s *run) makeRound(ctx context.Context, r round, ids int) (recovery <-chan time.Duration) {
	var group sync.WaitGroup
	var mu sync.Mutex
	for i, p := range r {
		id, f := ids+i+1, p.fault
		s.note("fault %d: %s for %s", id, f.Name, p.hold)
		s.recorder.FaultBegan(f.tell(id, s.Relays, "for "+p.hold.String()))
		group.Go(func() {
			began := time.Now()
			a := &attempt{world: s.world, random: rand.New(rand.NewPCG(p.seed, 0)), hold: p.hold}
			err := f.run(ctx, a)
			mu.Lock()
			defer mu.Unlock()
			s.recorder.FaultHealed(id)
			recovery = s.recorder.Recovery()
			s.note("fault %d: %s, fixed after %s: %s", id, f.Name, short(time.Since(began)), a.detail)
			if err != nil && ctx.Err() == nil {
				s.note("it failed to run: %s", err)
				s.notMade = append(s.notMade, fmt.Sprintf("%s: %s", f.Name, err))
			}
		})
	}
	group.Wait()
	return recovery
}

// awaitRecovery waits until a new message has arrived after a round. It finds a relay that is silent for too long.
func (s *run) awaitRecovery(ctx context.Context, recovery <-chan time.Duration, r round) {
	limit := max(time.Minute, s.RecoverWithin)
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	silence := limit
	select {
	case silence = <-recovery:
		s.note("recovered in %s", short(silence))
	case <-timeout.C:
		s.note("nothing new has arrived for %s", limit)
	case <-ctx.Done():
		return
	}
	if s.RecoverWithin > 0 && silence > s.RecoverWithin {
		s.noteViolation(fmt.Sprintf("after %s, nothing new was committed and arrived for %s, and %s are allowed",
			r[len(r)-1].fault.Name, short(silence), s.RecoverWithin))
	}
}

// end waits until everything has arrived, and stops the relays. Problems of the relay show in the history and are not
// errors here.
func (s *run) end(ctx context.Context) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	s.note("waiting for the outbox to drain")
	began := time.Now()
	if err := s.awaitDrained(ctx, drainQuiet); err != nil {
		s.note("%s", err)
	}
	if took := time.Since(began); s.DrainWithin > 0 && took > s.DrainWithin {
		s.noteViolation("the outbox took " + short(took) + " to empty at the end")
	}
	s.note("stopping the relays")
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	if err := s.stop(ctx); err != nil {
		return err
	}
	if err := s.awaitEmptyQueues(ctx); err != nil {
		s.note("%s", err)
	}
	return ctx.Err()
}

// readLogs searches the logs for fatal errors of the Go runtime.
func (s *run) readLogs() error {
	logs, err := filepath.Glob(filepath.Join(s.folder, "*.log"))
	fatal := regexp.MustCompile(`(?m)^(WARNING: DATA RACE|panic: .*|fatal error: .*)`)
	for _, log := range logs {
		text, failed := os.ReadFile(log)
		for _, line := range fatal.FindAll(text, -1) {
			s.noteViolation(fmt.Sprintf("%s has: %s", filepath.Base(log), line))
		}
		err = errors.Join(err, failed)
	}
	return err
}

func short(d time.Duration) string { return d.Round(time.Millisecond).String() }

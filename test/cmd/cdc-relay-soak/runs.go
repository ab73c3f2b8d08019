package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/test/soak/fault"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

// sameResult are the faults of runs that are compared, unless --faults has others. The servers keep what they have
// confirmed, RabbitMQ rejects nothing because of them, and the consumers, which observe the order, stay connected. None
// ends a connection to RabbitMQ only: after that, a message without a queue is retried for half a minute.
const sameResult = "relay-kill-*,relay-stop-all,relay-restart-rolling,relay-freeze-*," +
	"postgres-stop-immediate,postgres-kill,postgres-terminate-sessions,postgres-cut*,postgres-refuse*," +
	"postgres-blackhole*,postgres-late-both-ways,postgres-slot-dropped,postgres-table-locked,postgres-vacuum-full," +
	"postgres-settle-disk-full,rabbitmq-memory-alarm"

// transactions is how many transactions each writer ends in a run of several; 0: it ends with the duration.
func (o *options) transactions() int {
	if o.runs == 0 {
		return 0
	}
	const messages = 10 // of a transaction, on average
	return max(1, int(o.duration.Seconds()*o.rate/writers/messages))
}

// draw returns the options of one run of several. Modes alternate, so that two runs already compare them.
func (o *options) draw(random *rand.Rand, run int) *options {
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	drawn := *o
	drawn.relays = 1 + random.IntN(3)
	drawn.drawn = []string{
		"--mode", []string{"auto", "poll"}[(uint64(o.seed)+uint64(run))%2],
		"--max-in-flight", pick("10", "100", "2000"),
		"--poll-interval", pick("100ms", "300ms", "1s"),
		"--backoff-time", pick("50ms", "300ms"), "--max-backoff", "500ms", "--max-retries", "2",
	}
	if random.IntN(2) == 0 {
		drawn.drawn = append(drawn.drawn, "--setup", "--keep-published", "24h")
	}
	return &drawn
}

// runAll makes one run, or several with the same messages and faults and other settings, and compares the results.
func runAll(ctx context.Context, asked <-chan struct{}, o *options) (err error) {
	folder, err := os.MkdirTemp("", "cdc-relay-soak-")
	if err != nil {
		return notRunError{err}
	}
	fmt.Printf("seed %d\n", o.seed)
	var world *fault.World
	defer func() { // also after a panic
		if world != nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
			defer cancel()
			err = errors.Join(err, world.Close(ctx))
		}
		if err == nil {
			_ = os.RemoveAll(folder)
			return
		}
		fmt.Printf("histories and logs: %s\nto run it again: %s\n", folder, o.command)
		if !errors.Is(err, errViolated) {
			err = notRunError{err}
		}
	}()
	if o.runs == 0 {
		s := &soak{opts: o, folder: folder, out: os.Stdout}
		verdict, err := s.run(ctx, asked)
		world = s.world
		if err != nil {
			return err
		}
		return conclude(s, verdict)
	}
	var first []string
	random := rand.New(rand.NewPCG(uint64(o.seed), 1<<32)) // faults and writers use smaller second seeds
	for run := 1; run <= o.runs; run++ {
		s := &soak{opts: o.draw(random, run), folder: filepath.Join(folder, fmt.Sprint("run-", run)), world: world}
		fmt.Printf("run %d: relays %d, %s\n", run, s.opts.relays, strings.Join(s.opts.drawn, " "))
		effect, err := runOfSeveral(ctx, asked, s)
		world = s.world
		if err != nil {
			return err
		}
		if run == 1 {
			first = effect
		}
		if writeDifferences(first, effect, run) {
			return errViolated
		}
	}
	return nil
}

// runOfSeveral returns what a run has in common with the others. Its news go to a file.
func runOfSeveral(ctx context.Context, asked <-chan struct{}, s *soak) ([]string, error) {
	if err := os.Mkdir(s.folder, 0o700); err != nil {
		return nil, err
	}
	progress, err := os.Create(filepath.Join(s.folder, "progress.txt"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = progress.Close() }()
	s.out = progress
	began := time.Now()
	verdict, err := s.run(ctx, asked)
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.history.Close() }()
	effect, err := reread(s.history, history.Effect)
	if err != nil {
		return nil, err
	}
	c := verdict.Counters
	fmt.Printf("  %d messages, %d dead letters, %d duplicates, %d faults, %s, %d lines of result\n",
		c.Delivered, c.DeadLettered, c.Duplicated, verdict.Faults, history.Short(time.Since(began)), len(effect))
	if verdict.Result == history.Pass {
		return effect, s.unmade()
	}
	return effect, conclude(s, verdict)
}

// conclude writes the report of a run.
func conclude(s *soak, verdict *history.Verdict) error {
	fmt.Print(verdict.Text)
	switch {
	case verdict.Incomplete != "":
		return fmt.Errorf("nothing is proved: %s", verdict.Incomplete)
	case verdict.Result == history.Fail:
		return errViolated
	}
	return s.unmade()
}

// unmade returns an error if faults were not made: the run does not prove what its plan says.
func (s *soak) unmade() error {
	if len(s.notMade) == 0 {
		return nil
	}
	return fmt.Errorf("nothing was found, but faults were not made: %s", strings.Join(s.notMade, "; "))
}

// writeDifferences reports whether the results of the first and another run differ, and prints the first differences.
func writeDifferences(first, other []string, run int) bool {
	const most = 20
	var text strings.Builder
	differences := 0
	only := func(mark byte, line string) {
		if differences++; differences <= most {
			fmt.Fprintf(&text, "  %c %s\n", mark, line)
		}
	}
	for len(first) > 0 || len(other) > 0 {
		switch {
		case len(other) == 0 || len(first) > 0 && first[0] < other[0]:
			only('-', first[0])
			first = first[1:]
		case len(first) == 0 || other[0] < first[0]:
			only('+', other[0])
			other = other[1:]
		default:
			first, other = first[1:], other[1:]
		}
	}
	if differences == 0 {
		return false
	}
	fmt.Printf("FAIL: run %d (+) and run 1 (-) have different results, in %d lines; the first are\n%s", run,
		differences, text.String())
	return true
}

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
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

// mostDifferences is how many differences between two runs are printed.
const mostDifferences = 20

// transactions is how many transactions each writer ends in a run of several; 0: it ends with the duration.
func (o *options) transactions() int {
	if o.runs == 0 {
		return 0
	}
	const messages = 10 // of a transaction, on average
	return max(1, int(o.duration.Seconds()*o.rate/float64(o.writers)/messages))
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

// metamorphic runs the same messages and faults several times, each time with other settings, and compares the results.
func (p *process) metamorphic(ctx context.Context, asked <-chan struct{}, opts *options) (err error) {
	fmt.Fprintf(p.stdout, "seed %d, %d transactions of each writer\n", opts.seed, opts.transactions())
	folder := opts.keep
	if folder == "" {
		if folder, err = os.MkdirTemp("", "cdc-relay-soak-"); err != nil {
			return notRunError{err}
		}
	}
	var world *fault.World
	defer func() { // also after a panic
		if closed := (&soak{world: world}).closeWorld(ctx); closed != nil {
			err = errors.Join(err, notRunError{closed})
		}
	}()
	var first []string
	random := rand.New(rand.NewPCG(uint64(opts.seed), 1<<32)) // faults and writers use smaller second seeds
	for run := 1; run <= opts.runs && err == nil; run++ {
		s := &soak{opts: opts.draw(random, run), world: world}
		s.opts.keep = filepath.Join(folder, fmt.Sprint("run-", run))
		fmt.Fprintf(p.stdout, "run %d: relays %d, %s\n", run, s.opts.relays, strings.Join(s.opts.drawn, " "))
		var effect []string
		effect, err = p.runOfSeveral(ctx, asked, s)
		world = s.world
		if run == 1 {
			first = effect
		}
		if err == nil && writeDifferences(p.stdout, first, effect, run) {
			err = errViolated
		}
	}
	if err != nil {
		fmt.Fprintf(p.stdout, "histories and logs: %s\nto run it again: %s\n", folder, opts.command(p.args))
	} else if opts.keep == "" {
		_ = os.RemoveAll(folder)
	}
	return err
}

// runOfSeveral returns what a run has in common with the others.
func (p *process) runOfSeveral(ctx context.Context, asked <-chan struct{}, s *soak) ([]string, error) {
	files, err := newFiles(s.opts)
	if err != nil {
		return nil, err
	}
	defer func() { _ = files.close(io.Discard) }()
	progress, err := os.Create(filepath.Join(files.folder, "progress.txt"))
	if err != nil {
		return nil, notRunError{err}
	}
	defer func() { _ = progress.Close() }()
	began := time.Now()
	s.init(files, &screen{out: progress})
	if err := s.run(ctx, asked, history.Run{Seed: s.opts.seed}); err != nil {
		return nil, notRunError{err}
	}
	verdict, err := files.check()
	if err != nil {
		return nil, notRunError{err}
	}
	s.addTo(verdict)
	effect, err := files.effect()
	if err != nil {
		return nil, notRunError{err}
	}
	c := verdict.Counters
	fmt.Fprintf(p.stdout, "  %d messages, %d dead letters, %d duplicates, %d faults, %s, result %x\n", c.Delivered,
		c.DeadLettered, c.Duplicated, len(verdict.Faults), short(time.Since(began)), digest(effect))
	if !verdict.Passed() {
		return effect, errors.Join(verdict.WriteText(p.stdout), conclusion(verdict))
	}
	return effect, s.unmade()
}

func digest(effect []string) []byte {
	sum := sha256.Sum256([]byte(strings.Join(effect, "\n")))
	return sum[:8]
}

// writeDifferences reports whether the results of the first and another run differ, and prints the first differences.
func writeDifferences(out io.Writer, first, other []string, run int) bool {
	var text bytes.Buffer
	differences := 0
	only := func(mark byte, line string) {
		if differences++; differences <= mostDifferences {
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
	fmt.Fprintf(out, "FAIL: run %d (+) and run 1 (-) have different results, in %d lines; the first are\n%s", run,
		differences, text.String())
	return true
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/test/bench"
)

// usageError is a mistake in the command line or the environment.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

const description = `Runs the limits and the relay in rounds that take turns, on Postgres and RabbitMQ of its own, or on
those that CDC_RELAY_DATABASE_URL and CDC_RELAY_AMQP_URL name: there it makes databases, slots and queues and drops
them, and the processor time of servers elsewhere is 0. It prints a table of medians; the spread is from the least to
the greatest of the rounds.

EXAMPLES

  cdc-relay-bench                                    # some ten minutes
  cdc-relay-bench --only publish,drain --rounds 5 --bytes 100000
  cdc-relay-bench --only 'drain*' --against FILE     # two builds in turns
  cdc-relay-bench -- --mode poll                     # flags for cdc-relay run`

func newApp(stdout, stderr io.Writer) *cli.App {
	return &cli.App{
		Name:                      "cdc-relay-bench",
		Usage:                     "measures cdc-relay and its limits",
		UsageText:                 "cdc-relay-bench [FLAGS] [-- FLAGS OF cdc-relay run]",
		Description:               description,
		Flags:                     appFlags(),
		DisableSliceFlagSeparator: true,
		HideVersion:               true,
		HideHelpCommand:           true,
		Writer:                    stdout,
		ErrWriter:                 stderr,
		ExitErrHandler:            func(*cli.Context, error) {},
		OnUsageError:              func(_ *cli.Context, err error, _ bool) error { return usagef("%s", err) },
		Action: func(c *cli.Context) error {
			o, err := readOptions(c)
			if err != nil {
				return err
			}
			return measure(c.Context, o, stdout)
		},
	}
}

// options are the checked options of a run.
type options struct {
	cases     []bench.Case
	settings  bench.Settings
	rounds    int
	timeout   time.Duration
	relay     string
	relayArgs []string
	postgres  []string
	json      string
	list      bool
}

func appFlags() []cli.Flag {
	text := func(name, value, usage string) cli.Flag {
		return &cli.StringFlag{Name: name, Value: value, Usage: usage}
	}
	number := func(name string, value int, usage string) cli.Flag {
		return &cli.IntFlag{Name: name, Value: value, Usage: usage}
	}
	duration := func(name string, value time.Duration, usage string) cli.Flag {
		return &cli.DurationFlag{Name: name, Value: value, Usage: usage}
	}
	return []cli.Flag{
		text("only", "", "`LIST` of names or patterns of cases with commas between them (default: all)"),
		&cli.BoolFlag{Name: "list", Usage: "print the cases and exit"},
		number("rounds", 3, "how often each case is measured"),
		number("messages", 200_000, "how many messages wait or are published"),
		number("bytes", 300, "the size of a message"),
		number("keys", 10_000, "how many ordering keys the cases with keys have"),
		text("queue-type", "", "the type of the queue, such as quorum (default: that of the server)"),
		number("max-in-flight", 2000, "the relay's --max-in-flight; the limits use at most 400"),
		duration("steady", 15*time.Second, "how long a steady load lasts"),
		duration("timeout", 10*time.Minute, "the limit for one run"),
		text("relay", "", "`FILE`: the cdc-relay to measure (default: next to this program, else in PATH)"),
		text("against", "", "`FILE`: another build of cdc-relay, measured in turns with the first"),
		&cli.StringSliceFlag{
			Name:  "postgres",
			Usage: "`NAME=VALUE`: a setting of the private Postgres; may be given again",
		},
		text("json", "", "`FILE`: write all results as JSON"),
	}
}

func readOptions(c *cli.Context) (*options, error) {
	o := &options{
		settings: bench.Settings{
			Messages: c.Int("messages"), Bytes: c.Int("bytes"), Keys: c.Int("keys"), QueueType: c.String("queue-type"),
			Window: c.Int("max-in-flight"), Steady: c.Duration("steady"),
		},
		rounds: c.Int("rounds"), timeout: c.Duration("timeout"),
		postgres: c.StringSlice("postgres"), json: c.String("json"), list: c.Bool("list"),
		relayArgs: append([]string{"--max-in-flight", fmt.Sprint(c.Int("max-in-flight"))}, c.Args().Slice()...),
	}
	if first := c.Args().First(); first != "" && !strings.HasPrefix(first, "-") {
		return nil, usagef("unexpected %q; flags for cdc-relay run go after --", first)
	}
	for _, name := range []string{"rounds", "messages", "bytes", "keys", "max-in-flight"} {
		if c.Int(name) < 1 {
			return nil, usagef("--%s: want at least 1", name)
		}
	}
	var err error
	if o.cases, err = selectCases(c.String("only"), bench.Cases(o.settings)); err != nil {
		return nil, err
	}
	if o.list {
		return o, nil
	}
	if other := c.String("against"); other != "" {
		if other, err = findRelay(other); err != nil {
			return nil, err
		}
		o.cases = bench.Against(o.cases, other)
	}
	o.relay, err = findRelay(c.String("relay"))
	return o, err
}

// selectCases returns the listed cases in their own order, or all. Each pattern must match at least one.
func selectCases(list string, all []bench.Case) ([]bench.Case, error) {
	if list == "" {
		return all, nil
	}
	wanted := make(map[string]bool)
	for pattern := range strings.SplitSeq(list, ",") {
		fits := 0
		for _, one := range all {
			ok, err := path.Match(strings.TrimSpace(pattern), one.Name)
			if err != nil {
				return nil, usagef("--only: %q is not a pattern: %s", pattern, err)
			}
			if ok {
				fits++
				wanted[one.Name] = true
			}
		}
		if fits == 0 {
			return nil, usagef("--only: there is no case %q, see cdc-relay-bench --list", pattern)
		}
	}
	return slices.DeleteFunc(all, func(one bench.Case) bool { return !wanted[one.Name] }), nil
}

// findRelay finds the program to measure.
func findRelay(file string) (string, error) {
	const name = "cdc-relay"
	if file != "" {
		return filepath.Abs(file)
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), name)
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	found, err := exec.LookPath(name)
	if err != nil {
		return "", usagef("there is no %s beside this program nor in PATH: name it with --relay FILE", name)
	}
	return filepath.Abs(found)
}

// redact removes passwords from addresses in output for people.
func redact(text string) string {
	return regexp.MustCompile(`(://[^\s:/@"']*):[^\s"']*@`).ReplaceAllString(text, "$1:***@")
}

// measure runs the rounds and prints the report.
func measure(ctx context.Context, o *options, stdout io.Writer) (err error) {
	if o.list {
		for _, one := range o.cases {
			fmt.Fprintf(stdout, "%-17s %s\n", one.Name, one.About)
		}
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "cdc-relay-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	site, err := bench.OpenSite(ctx, bench.SiteConfig{
		Relay: o.relay, RelayArgs: o.relayArgs, Self: self, Folder: folder, Settings: o.postgres,
		Log: func(line string) { fmt.Fprintln(stdout, redact(line)) },
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, site.Close(context.WithoutCancel(ctx))) }()
	report, err := bench.NewReport(ctx, site, o.settings)
	if err != nil {
		return err
	}
	err = rounds(ctx, o, site, report, stdout)
	return errors.Join(err, conclude(o, report, stdout))
}

// rounds runs the cases in turns.
func rounds(ctx context.Context, o *options, site *bench.Site, report *bench.Report, stdout io.Writer) error {
	for round := 1; round <= o.rounds; round++ {
		for _, one := range o.cases {
			result, err := one.Run(ctx, site, round, o.timeout)
			if err != nil {
				return err
			}
			report.Results = append(report.Results, *result)
			fmt.Fprintf(stdout, "round %d of %d, %s: %s\n", round, o.rounds, one.Name, bench.Line(*result))
		}
	}
	return nil
}

// conclude prints the results so far, also if the rounds were interrupted.
func conclude(o *options, report *bench.Report, stdout io.Writer) error {
	if len(report.Results) == 0 {
		return nil
	}
	fmt.Fprintln(stdout)
	err := report.WriteText(stdout, o.cases)
	if o.json == "" {
		return err
	}
	file, failed := os.Create(o.json)
	if failed != nil {
		return errors.Join(err, failed)
	}
	return errors.Join(err, report.WriteJSON(file), file.Close())
}

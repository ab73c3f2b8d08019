// Command cdc-relay-bench measures cdc-relay and its limits; see docs/performance.md.
//
// It is a separate program and not a command of cdc-relay, because it starts servers and creates and drops databases.
// A production program should not contain that.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/internal/tune"
	"github.com/cdc-relay/cdc-relay/test/bench"
)

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	code := run(ctx, os.Args, os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// errUsage is a mistake in the command line.
var errUsage = errors.New("see cdc-relay-bench --help")

func usagef(format string, args ...any) error {
	return fmt.Errorf(format+"\n%w", append(args, errUsage)...)
}

// run runs one command and returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var err error
	if len(args) > 1 && args[1] == "limit" { // a process started by this program
		tune.Runtime(os.LookupEnv) // the same settings as the relay
		err = bench.RunLimit(ctx, stdin)
	} else {
		err = newApp(stdout, stderr).RunContext(ctx, args)
	}
	if err == nil {
		return exitDone
	}
	fmt.Fprintf(stderr, "cdc-relay-bench: %s\n", redact(err.Error()))
	if errors.Is(err, errUsage) {
		return exitUsage
	}
	return exitFailed
}

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
		DisableSliceFlagSeparator: true,
		HideVersion:               true,
		HideHelpCommand:           true,
		Writer:                    stdout,
		ErrWriter:                 stderr,
		ExitErrHandler:            func(*cli.Context, error) {},
		OnUsageError:              func(_ *cli.Context, err error, _ bool) error { return usagef("%s", err) },
		Action:                    measure,
		Flags: []cli.Flag{
			&cli.StringFlag{
				Name: "only", Usage: "`LIST` of names or patterns of cases with commas between them (default: all)",
			},
			&cli.BoolFlag{Name: "list", Usage: "print the cases and exit"},
			&cli.IntFlag{Name: "rounds", Value: 3, Usage: "how often each case is measured"},
			&cli.IntFlag{Name: "messages", Value: 200_000, Usage: "how many messages wait or are published"},
			&cli.IntFlag{Name: "bytes", Value: 300, Usage: "the size of a message"},
			&cli.IntFlag{Name: "keys", Value: 10_000, Usage: "how many ordering keys the cases with keys have"},
			&cli.StringFlag{Name: "queue-type", Usage: "such as quorum (default: that of the server)"},
			&cli.IntFlag{
				Name: "max-in-flight", Value: 2000, Usage: "the relay's --max-in-flight; the limits use at most 400",
			},
			&cli.DurationFlag{Name: "steady", Value: 15 * time.Second, Usage: "how long a steady load lasts"},
			&cli.DurationFlag{Name: "timeout", Value: 10 * time.Minute, Usage: "the limit for one run"},
			&cli.StringFlag{
				Name: "relay", Usage: "`FILE`: the cdc-relay to measure (default: next to this program)",
			},
			&cli.StringFlag{
				Name: "against", Usage: "`FILE`: another build of cdc-relay, measured in turns with the first",
			},
			&cli.StringSliceFlag{
				Name: "postgres", Usage: "`NAME=VALUE`: a setting of the private Postgres; may be given again",
			},
			&cli.StringFlag{Name: "json", Usage: "`FILE`: write all results as JSON"},
		},
	}
}

// measure runs the rounds and prints the report.
func measure(c *cli.Context) (err error) {
	if first := c.Args().First(); first != "" && !strings.HasPrefix(first, "-") {
		return usagef("unexpected %q; flags for cdc-relay run go after --", first)
	}
	for _, name := range []string{"rounds", "messages", "bytes", "keys", "max-in-flight"} {
		if c.Int(name) < 1 {
			return usagef("--%s: want at least 1", name)
		}
	}
	settings := bench.Settings{
		Messages: c.Int("messages"), Bytes: c.Int("bytes"), Keys: c.Int("keys"), QueueType: c.String("queue-type"),
		Window: c.Int("max-in-flight"), Steady: c.Duration("steady"),
	}
	cases, err := selectCases(c.String("only"), bench.Cases(settings))
	if err != nil {
		return err
	}
	if c.Bool("list") {
		for _, one := range cases {
			fmt.Fprintf(c.App.Writer, "%-17s %s\n", one.Name, one.About)
		}
		return nil
	}
	if other := c.String("against"); other != "" {
		if other, err = filepath.Abs(other); err != nil {
			return err
		}
		cases = bench.Against(cases, other)
	}
	site, closeSite, err := openSite(c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeSite()) }()
	report, err := bench.NewReport(c.Context, site, settings)
	if err != nil {
		return err
	}
	err = rounds(c, cases, site, report)
	return errors.Join(err, conclude(c, cases, report))
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
			return nil, usagef("--only: there is no case %q; --list prints them", pattern)
		}
	}
	return slices.DeleteFunc(all, func(one bench.Case) bool { return !wanted[one.Name] }), nil
}

// openSite starts the servers. The caller closes the site.
func openSite(c *cli.Context) (*bench.Site, func() error, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	relay := c.String("relay")
	if relay == "" {
		relay = filepath.Join(filepath.Dir(self), "cdc-relay")
	}
	if relay, err = exec.LookPath(relay); err != nil {
		return nil, nil, usagef("--relay: %s", err)
	}
	if relay, err = filepath.Abs(relay); err != nil {
		return nil, nil, err
	}
	folder, err := os.MkdirTemp("", "cdc-relay-bench-")
	if err != nil {
		return nil, nil, err
	}
	site, err := bench.OpenSite(c.Context, bench.SiteConfig{
		Relay: relay, Self: self, Folder: folder, Settings: c.StringSlice("postgres"),
		RelayArgs: append([]string{"--max-in-flight", fmt.Sprint(c.Int("max-in-flight"))}, c.Args().Slice()...),
		Log:       func(line string) { fmt.Fprintln(c.App.Writer, redact(line)) },
	})
	if err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(folder))
	}
	return site, func() error {
		return errors.Join(site.Close(context.WithoutCancel(c.Context)), os.RemoveAll(folder))
	}, nil
}

// rounds runs the cases in turns.
func rounds(c *cli.Context, cases []bench.Case, site *bench.Site, report *bench.Report) error {
	for round := range c.Int("rounds") {
		for _, one := range cases {
			result, err := one.Run(c.Context, site, round+1, c.Duration("timeout"))
			if err != nil {
				return err
			}
			report.Results = append(report.Results, *result)
			fmt.Fprintf(c.App.Writer, "round %d, %s: %s\n", round+1, one.Name, bench.Line(*result))
		}
	}
	return nil
}

// conclude prints the results so far, also if the rounds were interrupted.
func conclude(c *cli.Context, cases []bench.Case, report *bench.Report) error {
	if len(report.Results) == 0 {
		return nil
	}
	fmt.Fprintln(c.App.Writer)
	err := report.WriteText(c.App.Writer, cases)
	if c.String("json") == "" {
		return err
	}
	file, failed := os.Create(c.String("json"))
	if failed != nil {
		return errors.Join(err, failed)
	}
	return errors.Join(err, report.WriteJSON(file), file.Close())
}

// redact removes passwords from addresses in output for people.
func redact(text string) string {
	return regexp.MustCompile(`(://[^\s:/@"']*):[^\s"']*@`).ReplaceAllString(text, "$1:***@")
}

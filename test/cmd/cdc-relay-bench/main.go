// Command cdc-relay-bench measures cdc-relay and its limits; see docs/performance.md.
//
// It is a separate program and not a command of cdc-relay, because it starts servers. A production program should not
// contain that.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/internal/tune"
	"github.com/cdc-relay/cdc-relay/test/bench"
	"github.com/cdc-relay/cdc-relay/test/program"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, os.Args, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "cdc-relay-bench: %s\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) > 1 && args[1] == "limit" { // a process started by this program
		tune.Runtime(os.LookupEnv) // the same settings as the relay
		return bench.RunLimit(ctx, os.Stdin)
	}
	return newApp(stdout).RunContext(ctx, args)
}

const description = `Runs the limits and the relay in rounds that take turns, on Postgres and RabbitMQ of its own. It
prints a table of medians; the spread is from the least to the greatest of the rounds.

EXAMPLES

  cdc-relay-bench                                    # some ten minutes
  cdc-relay-bench --only publish,drain --rounds 5 --bytes 100000
  cdc-relay-bench --only 'drain*' --against FILE     # two builds in turns
  cdc-relay-bench -- --mode poll                     # flags for cdc-relay run`

func newApp(stdout io.Writer) *cli.App {
	return &cli.App{
		Name:                      "cdc-relay-bench",
		Usage:                     "measures cdc-relay and its limits",
		UsageText:                 "cdc-relay-bench [FLAGS] [-- FLAGS OF cdc-relay run]",
		Description:               description,
		DisableSliceFlagSeparator: true,
		HideVersion:               true,
		HideHelpCommand:           true,
		Writer:                    stdout,
		ExitErrHandler:            func(*cli.Context, error) {}, // main prints the error
		OnUsageError:              func(_ *cli.Context, err error, _ bool) error { return err },
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
			&cli.DurationFlag{Name: "steady", Value: 15 * time.Second, Usage: "how long a steady load lasts"},
			&cli.StringFlag{
				Name: "relay", Usage: "`FILE`: the cdc-relay to measure (default: next to this program)",
			},
			&cli.StringFlag{
				Name: "against", Usage: "`FILE`: another build of cdc-relay, measured in turns with the first",
			},
			&cli.StringSliceFlag{Name: "postgres", Usage: "`NAME=VALUE`: a setting of Postgres; may be given again"},
			&cli.StringFlag{Name: "json", Usage: "`FILE`: write all results as JSON"},
		},
	}
}

// measure runs the rounds and prints the report, also if the rounds were interrupted.
func measure(c *cli.Context) (err error) {
	cases, err := selectedCases(c)
	if err != nil {
		return err
	}
	if c.Bool("list") {
		for _, one := range cases {
			fmt.Fprintf(c.App.Writer, "%-17s %s\n", one.Name, one.About)
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
	defer func() { _ = os.RemoveAll(folder) }()
	site, err := bench.OpenSite(c.Context, self, folder, c.StringSlice("postgres"), c.Args().Slice(),
		func(line string) { fmt.Fprintln(c.App.Writer, line) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, site.Close(context.WithoutCancel(c.Context))) }()
	fmt.Fprintf(c.App.Writer, "%d cores, %s/%s, Postgres %s, RabbitMQ %s, %s\n", runtime.NumCPU(), runtime.GOOS,
		runtime.GOARCH, site.Postgres.Version, site.RabbitMQ.Version, runtime.Version())
	var results []bench.Result
	err = rounds(c, cases, site, &results)
	if len(results) == 0 {
		return err
	}
	if file := c.String("json"); file != "" {
		text, failed := json.MarshalIndent(results, "", " ")
		err = errors.Join(err, failed, os.WriteFile(file, text, 0o600))
	}
	return errors.Join(err, bench.WriteText(c.App.Writer, cases, results))
}

func selectedCases(c *cli.Context) ([]bench.Case, error) {
	if first := c.Args().First(); first != "" && !strings.HasPrefix(first, "-") {
		return nil, fmt.Errorf("unexpected %q; flags for cdc-relay run go after --", first)
	}
	for _, name := range []string{"rounds", "messages", "bytes", "keys"} {
		if c.Int(name) < 1 {
			return nil, fmt.Errorf("--%s: want at least 1", name)
		}
	}
	relay, err := program.Relay(c.String("relay"))
	if err != nil {
		return nil, fmt.Errorf("--relay: %w", err)
	}
	all := bench.Cases(relay, bench.Settings{
		Messages: c.Int("messages"), Bytes: c.Int("bytes"), Keys: c.Int("keys"), QueueType: c.String("queue-type"),
		Steady: c.Duration("steady"),
	})
	cases, err := program.Select(c.String("only"), all, func(one bench.Case) string { return one.Name })
	if err != nil {
		return nil, fmt.Errorf("--only: %w; --list prints all cases", err)
	}
	other := c.String("against")
	if other == "" {
		return cases, nil
	}
	if other, err = filepath.Abs(other); err != nil {
		return nil, err
	}
	return bench.Against(cases, other), nil
}

// rounds runs the cases in turns.
func rounds(c *cli.Context, cases []bench.Case, site *bench.Site, results *[]bench.Result) error {
	for round := range c.Int("rounds") {
		for _, one := range cases {
			result, err := one.Run(c.Context, site, round+1)
			if err != nil {
				return err
			}
			*results = append(*results, *result)
			fmt.Fprintf(c.App.Writer, "round %d, %s: %.0f messages/s, %d duplicates\n",
				round+1, one.Name, result.Rate, result.Duplicates)
		}
	}
	return nil
}

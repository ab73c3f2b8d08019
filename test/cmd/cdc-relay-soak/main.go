// Command cdc-relay-soak checks the promises of docs/guarantees.md: it writes and consumes messages, causes faults, and
// checks the history.
//
// It is a separate program and not a command of cdc-relay, because it starts, stops and kills servers, drops slots and
// ends sessions. A production program should not contain that.
package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/test/program"
	"github.com/cdc-relay/cdc-relay/test/soak"
)

// The first signal ends the faults of a run and checks its history. The second ends the program at once.
func main() {
	ctx, cut := context.WithCancel(context.Background())
	calm, endFaults := context.WithCancel(ctx)
	signals := make(chan os.Signal, 2) // so that the second signal is not lost while the first is handled
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		<-signals
		endFaults()
		<-signals
		fmt.Fprintln(os.Stderr, "cdc-relay-soak: second signal: ending at once")
		cut()
	}()
	switch err := app(calm).RunContext(ctx, os.Args); {
	case errors.Is(err, soak.ErrViolated):
		os.Exit(1)
	case err != nil:
		fmt.Fprintf(os.Stderr, "cdc-relay-soak: %s\n", err)
		os.Exit(2)
	}
}

const description = `Starts Postgres, RabbitMQ and some relays of its own, writes and consumes, makes faults in an order
that --seed decides, and checks what arrived against what was committed. If it finds something, it keeps the history and
the logs; nothing else is left of it.

Ctrl-C ends the faults, and checks what was run until then; a second one ends at once.

EXIT CODES

  0  nothing was found    1  a promise was broken    2  it could not be run to its end

EXAMPLES

  cdc-relay-soak
  cdc-relay-soak --duration 1h --faults 'relay-*,postgres-stop-fast'
  cdc-relay-soak --runs 5 --duration 10s      # five runs, each with other settings of the relay
  cdc-relay-soak -- --max-in-flight 100       # flags for cdc-relay run`

// quickFaults are the faults of several runs, unless --faults has others: those after which a run ends soon.
const quickFaults = "relay-kill-*,relay-stop-all,relay-restart-rolling,relay-freeze-*," +
	"postgres-stop-immediate,postgres-kill,postgres-terminate-sessions,postgres-cut*,postgres-refuse*," +
	"postgres-blackhole*,postgres-late-both-ways,postgres-slot-dropped,postgres-table-locked,postgres-vacuum-full," +
	"postgres-settle-disk-full,rabbitmq-memory-alarm"

func app(calm context.Context) *cli.App {
	var o soak.Options
	return &cli.App{
		Name:        "cdc-relay-soak",
		Usage:       "breaks everything around cdc-relay, and checks that nothing is lost",
		UsageText:   "cdc-relay-soak [FLAGS] [-- FLAGS OF cdc-relay run]\ncdc-relay-soak list",
		Description: description,
		Flags:       appFlags(&o),
		Action: func(c *cli.Context) error {
			if err := read(c, &o); err != nil {
				return err
			}
			return soak.Run(c.Context, calm, o)
		},
		DisableSliceFlagSeparator: true,
		HideVersion:               true,
		HideHelpCommand:           true,
		ExitErrHandler:            func(*cli.Context, error) {}, // main prints the error
		OnUsageError:              func(_ *cli.Context, err error, _ bool) error { return err },
		Commands: []*cli.Command{{
			Name: "list", Usage: "the faults",
			Action: func(*cli.Context) error {
				for _, f := range soak.Faults() {
					fmt.Println(f.Name)
				}
				return nil
			},
		}},
	}
}

func appFlags(o *soak.Options) []cli.Flag {
	duration := func(name string, to *time.Duration, value time.Duration, usage string) cli.Flag {
		return &cli.DurationFlag{Name: name, Destination: to, Value: value, Usage: usage}
	}
	number := func(name string, to *int, value int, usage string) cli.Flag {
		return &cli.IntFlag{Name: name, Destination: to, Value: value, Usage: usage}
	}
	fraction := func(name string, to *float64, value float64, usage string) cli.Flag {
		return &cli.Float64Flag{Name: name, Destination: to, Value: value, Usage: usage}
	}
	return []cli.Flag{
		duration("duration", &o.Duration, 3*time.Minute, "how long to cause faults; the last one is then finished"),
		number("rounds", &o.Rounds, 0, "end after so many rounds of faults (default: as many as --duration allows)"),
		number("runs", &o.Runs, 0, "make so many runs, and draw --relays and the relay's settings for each "+
			"(default: one run)"),
		&cli.Int64Flag{
			Name: "seed", Destination: &o.Seed, DefaultText: "random",
			Usage: "determines the messages and the order of the faults",
		},
		fraction("rate", &o.Rate, 300, "messages a second, of all writers together"),
		number("relays", &o.Relays, 2, "how many relays run"),
		&cli.StringFlag{
			Name: "relay", Destination: &o.Relay,
			Usage: "`FILE`: the program to test (default: next to this program)",
		},
		&cli.StringFlag{
			Name: "faults", Usage: "`LIST` of names or patterns with commas between them; " +
				"none: no faults (default: all, or with --runs those that end soon)",
		},
		duration("hold", &o.Hold, 5*time.Second, "how long a fault lasts, plus or minus half"),
		duration("pause", &o.Pause, 3*time.Second,
			"the pause between two faults, after the recovery from the first"),
		fraction("overlap", &o.Overlap, 0.2,
			"the share of Postgres faults that coincide with one of RabbitMQ, 0 to 1"),
		duration("recover-within", &o.RecoverWithin, 10*time.Second, "the limit for the first arrival after a fault"),
		duration("drain-within", &o.DrainWithin, 0,
			"the limit for the last rows to leave the outbox at the end (default: none)"),
	}
}

// read reads what the flags do not set by themselves, and checks everything.
func read(c *cli.Context, o *soak.Options) (err error) {
	o.RelayArgs = c.Args().Slice()
	if first := c.Args().First(); first != "" && !strings.HasPrefix(first, "-") {
		return fmt.Errorf("unknown command %q, want list; flags for cdc-relay run go after --", first)
	}
	if !c.IsSet("seed") {
		o.Seed = rand.Int64N(1 << 32)
	}
	if o.Rate <= 0 || o.Relays < 1 || o.Hold <= 0 {
		return fmt.Errorf("--rate, --relays and --hold: want more than 0")
	}
	list := c.String("faults")
	if o.Runs > 0 && list == "" {
		list = quickFaults
	}
	if list != "none" {
		o.Faults, err = program.Select(list, soak.Faults(), func(f soak.Fault) string { return f.Name })
		if err != nil {
			return fmt.Errorf("--faults: %w; see cdc-relay-soak list", err)
		}
	}
	if o.Relay, err = program.Relay(o.Relay); err != nil {
		return fmt.Errorf("--relay: %w", err)
	}
	o.Command = fmt.Sprint("cdc-relay-soak --seed ", o.Seed)
	for _, arg := range os.Args[1:] {
		if strings.ContainsAny(arg, " *?[") {
			arg = "'" + arg + "'"
		}
		o.Command += " " + arg
	}
	return nil
}

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
	"os"
	"os/signal"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/test/soak/fault"
)

// Exit codes.
const (
	exitPassed   = 0
	exitViolated = 1   // a promise was broken
	exitUsage    = 2   // wrong usage or configuration
	exitNotRun   = 3   // the run was not completed: nothing is proved
	exitCut      = 130 // after a second signal
)

// notRunError is why a run was not completed. Every error that is neither this nor errViolated is one of usage.
type notRunError struct{ error }

func (e notRunError) Unwrap() error { return e.error }

// errViolated: the printed report has violations.
var errViolated = errors.New("a promise was broken")

// The first signal ends the faults of a run and checks its history. The second ends the program at once.
func main() {
	ctx, cut := context.WithCancel(context.Background())
	asked := make(chan struct{})
	// Two, so that a second signal is not lost while the first is handled.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		<-signals
		close(asked)
		<-signals
		fmt.Fprintln(os.Stderr, "cdc-relay-soak: second signal: ending at once")
		cut()
	}()
	err := app(asked).RunContext(ctx, os.Args)
	var notRun notRunError
	code := exitPassed
	switch {
	case ctx.Err() != nil:
		code = exitCut
	case err == nil:
	case errors.Is(err, errViolated):
		code = exitViolated
	case errors.As(err, &notRun):
		fmt.Fprintf(os.Stderr, "cdc-relay-soak: %s\n", err)
		code = exitNotRun
	default:
		fmt.Fprintf(os.Stderr, "cdc-relay-soak: %s\nsee cdc-relay-soak --help\n", err)
		code = exitUsage
	}
	os.Exit(code)
}

const description = `Starts Postgres, RabbitMQ and some relays of its own, writes and consumes, makes faults in an order
that --seed decides, and checks what arrived against what was committed. If it finds something, it keeps the history and
the logs; nothing else is left of it.

Ctrl-C ends the faults, and checks what was run until then; a second one ends at once.

EXIT CODES

  0  nothing was found        2  wrong usage
  1  a promise was broken     3  it could not be run to its end

EXAMPLES

  cdc-relay-soak
  cdc-relay-soak --duration 1h --faults 'relay-*,postgres-stop-fast'
  cdc-relay-soak --runs 5 --duration 10s      # five runs that must have the same result
  cdc-relay-soak -- --max-in-flight 100       # flags for cdc-relay run`

func app(asked <-chan struct{}) *cli.App {
	var o options
	return &cli.App{
		Name:        "cdc-relay-soak",
		Usage:       "breaks everything around cdc-relay, and checks that nothing is lost",
		UsageText:   "cdc-relay-soak [FLAGS] [-- FLAGS OF cdc-relay run]\ncdc-relay-soak list",
		Description: description,
		Flags:       o.appFlags(),
		Action: func(c *cli.Context) error {
			if err := o.read(c); err != nil {
				return err
			}
			return runAll(c.Context, asked, &o)
		},
		DisableSliceFlagSeparator: true,
		HideVersion:               true,
		HideHelpCommand:           true,
		ExitErrHandler:            func(*cli.Context, error) {}, // main prints the error
		OnUsageError:              func(_ *cli.Context, err error, _ bool) error { return err },
		Commands: []*cli.Command{{
			Name: "list", Usage: "the faults",
			Action: func(*cli.Context) error {
				for _, f := range fault.All() {
					fmt.Println(f.Name)
				}
				return nil
			},
		}},
	}
}

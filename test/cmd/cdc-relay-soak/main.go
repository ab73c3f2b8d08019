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
	"io"
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

func main() {
	// Two, so that a second signal is not lost while the first is handled.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	p := process{args: os.Args, stdout: os.Stdout, stderr: os.Stderr, signals: signals}
	os.Exit(p.run(context.Background()))
}

// process holds the parts of the operating system that the command line uses, so that tests can call run.
type process struct {
	args           []string
	stdout, stderr io.Writer
	signals        <-chan os.Signal
}

// usagef is a mistake in the command line or the environment, as is every error that is not one of the next two.
func usagef(format string, args ...any) error { return fmt.Errorf(format, args...) }

// notRunError is why a run was not completed.
type notRunError struct{ error }

func (e notRunError) Unwrap() error { return e.error }

// errViolated: the printed report has violations.
var errViolated = errors.New("a promise was broken")

// run runs one command and returns the exit code. The first signal ends the faults of a run and checks its history. The
// second ends the program at once.
func (p *process) run(ctx context.Context) int {
	ctx, cut := context.WithCancel(ctx)
	defer cut()
	asked := make(chan struct{})
	done := make(chan error, 1)
	go func() { done <- p.app(asked).RunContext(ctx, p.args) }()
	for signals := 0; ; {
		select {
		case err := <-done:
			if signals > 1 {
				return exitCut
			}
			return p.report(err)
		case <-p.signals:
			signals++
			switch signals {
			case 1:
				close(asked)
			case 2:
				fmt.Fprintln(p.stderr, "cdc-relay-soak: second signal: ending at once")
				cut()
			}
		}
	}
}

func (p *process) report(err error) int {
	var notRun notRunError
	switch {
	case err == nil:
		return exitPassed
	case errors.Is(err, errViolated):
		return exitViolated
	case errors.As(err, &notRun):
		fmt.Fprintf(p.stderr, "cdc-relay-soak: %s\n", err)
		return exitNotRun
	}
	fmt.Fprintf(p.stderr, "cdc-relay-soak: %s\nsee cdc-relay-soak --help\n", err)
	return exitUsage
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

func (p *process) app(asked <-chan struct{}) *cli.App {
	var o options
	return &cli.App{
		Name:  "cdc-relay-soak",
		Usage: "breaks everything around cdc-relay, and checks that nothing is lost",
		UsageText: "cdc-relay-soak [FLAGS] [-- FLAGS OF cdc-relay run]\n" +
			"cdc-relay-soak list",
		Description: description,
		Flags:       o.appFlags(),
		Action: func(c *cli.Context) error {
			if err := o.read(c, p.args); err != nil {
				return err
			}
			return p.runAll(c.Context, asked, &o)
		},
		DisableSliceFlagSeparator: true,
		HideVersion:               true,
		HideHelpCommand:           true,
		Writer:                    p.stdout,
		ErrWriter:                 p.stderr,
		ExitErrHandler:            func(*cli.Context, error) {}, // report prints the error
		OnUsageError:              func(_ *cli.Context, err error, _ bool) error { return err },
		Commands: []*cli.Command{
			{Name: "list", Usage: "the faults", Action: p.listCommand},
		},
	}
}

func (p *process) listCommand(*cli.Context) error {
	for _, f := range fault.All() {
		fmt.Fprintln(p.stdout, f.Name)
	}
	return nil
}

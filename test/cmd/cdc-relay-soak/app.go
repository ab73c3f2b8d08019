package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/urfave/cli/v2"
)

// Exit codes.
const (
	exitPassed   = 0
	exitViolated = 1   // a promise was broken
	exitUsage    = 2   // wrong usage or configuration
	exitNotRun   = 3   // the run was not completed: nothing is proved
	exitCut      = 130 // after a second signal
)

// process holds the parts of the operating system that the command line uses, so that tests can call run.
type process struct {
	args           []string
	stdout, stderr io.Writer
	signals        <-chan os.Signal
}

// usageError is a mistake in the command line or the environment.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

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

// report prints the error. Errors of the cli library are usage errors.
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
that --seed decides, and checks what arrived against what was committed. Nothing is left of it at the end.

Ctrl-C ends the faults, and checks what was run until then; a second one ends at once.

EXIT CODES

  0  nothing was found        2  wrong usage
  1  a promise was broken     3  it could not be run to its end

EXAMPLES

  cdc-relay-soak
  cdc-relay-soak --duration 1h --faults 'relay-*,postgres-fast-stop' --json report.json
  cdc-relay-soak --runs 5 --duration 10s      # five runs that must have the same result
  cdc-relay-soak -- --max-in-flight 100       # flags for cdc-relay run`

func (p *process) app(asked <-chan struct{}) *cli.App {
	return &cli.App{
		Name:  "cdc-relay-soak",
		Usage: "breaks everything around cdc-relay, and checks that nothing is lost",
		UsageText: "cdc-relay-soak [FLAGS] [-- FLAGS OF cdc-relay run]\n" +
			"cdc-relay-soak list\n" +
			"cdc-relay-soak table FILE…",
		Description:               description,
		Flags:                     runFlags(),
		Action:                    func(c *cli.Context) error { return p.runCommand(c, asked) },
		DisableSliceFlagSeparator: true,
		HideVersion:               true,
		HideHelpCommand:           true,
		Writer:                    p.stdout,
		ErrWriter:                 p.stderr,
		ExitErrHandler:            func(*cli.Context, error) {}, // report prints the error
		OnUsageError:              func(_ *cli.Context, err error, _ bool) error { return usagef("%s", err) },
		Commands: []*cli.Command{
			{
				Name:         "list",
				Usage:        "the faults, and what they need",
				Action:       p.listCommand,
				OnUsageError: usageIn("list"),
			},
			{
				Name:         "table",
				Usage:        "the tables of docs/results/reliability.md, from the reports of runs with --subject",
				ArgsUsage:    "FILE…",
				Action:       p.tableCommand,
				OnUsageError: usageIn("table"),
			},
		},
	}
}

func usageIn(command string) cli.OnUsageErrorFunc {
	return func(_ *cli.Context, err error, _ bool) error { return usagef("%s: %s", command, err) }
}

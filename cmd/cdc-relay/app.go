package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/terminal"
)

// Exit codes. A second signal during the drain exits with 128 + its number.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
	// exitNotFound: the message that the command names does not exist.
	exitNotFound = 3
)

// process holds the parts of the operating system that the command line uses. Tests replace them and call run directly.
type process struct {
	args      []string
	terminal  terminal.Terminal
	lookupEnv func(string) (string, bool)
	environ   func() []string
	signals   <-chan os.Signal
}

// sameStop is how long further signals count as the first one: timeout(1) and some supervisors signal the process, and
// then its whole group.
const sameStop = 100 * time.Millisecond

// run runs one command and returns the exit code. The first signal cancels the command's context; the second exits at
// once.
func (p *process) run(ctx context.Context) int {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if p.cannotComplete() {
		return exitDone
	}

	done := make(chan error, 1)
	go func() { done <- p.app().RunContext(ctx, protectIDs(p.args)) }()

	var stopped time.Time // when the first signal came
	for {
		select {
		case err := <-done:
			return p.report(err)
		case sig := <-p.signals:
			switch {
			case stopped.IsZero():
				stopped = time.Now()
				cancel()
			case time.Since(stopped) > sameStop:
				fmt.Fprintf(p.terminal.Err, "cdc-relay: second %s: exiting at once\n", sig)
				return exitCodeOf(sig)
			}
		}
	}
}

func exitCodeOf(sig os.Signal) int {
	if number, ok := sig.(syscall.Signal); ok {
		return 128 + int(number)
	}
	return exitFailed
}

// report prints the error in one line, or each mistake of the user in a line, and then the hint. It returns the exit code.
func (p *process) report(err error) int {
	if err == nil || errors.Is(err, flag.ErrHelp) { // the help page is printed already
		return exitDone
	}
	if failure.IsLogged(err) {
		return exitFailed
	}
	lines := failure.Lines(err)
	for _, line := range lines {
		fmt.Fprintf(p.terminal.Err, "cdc-relay: %s\n", line)
	}
	if hint := cmp.Or(failure.Hint(err), hintOfMissing(lines)); hint != "" {
		fmt.Fprintf(p.terminal.Err, "  hint: %s\n", hint)
	}
	var exit cli.ExitCoder // the help page does not exist
	switch {
	case failure.IsUsage(err) || errors.As(err, &exit):
		return exitUsage
	case failure.IsNotFound(err):
		return exitNotFound
	}
	return exitFailed
}

func (p *process) app() *cli.App {
	commands := []*cli.Command{
		p.setupCommand(),
		p.migrateCommand(),
		p.teardownCommand(),
		p.checkCommand(),
		p.adoptCommand(),
		p.runCommand(),
		p.drainCommand(),
		p.statsCommand(),
		p.listCommand(),
		p.peekCommand(),
		p.keysCommand(),
		p.explainCommand(),
		p.deadLetterCommand(),
		p.publishedCommand(),
		p.retryCommand(),
		p.consoleCommand(),
		p.demoCommand(),
		p.configCommand(),
		p.versionCommand(),
		p.completionCommand(),
		p.manCommand(),
	}
	for _, command := range commands {
		p.finish(command, command.Name)
	}
	return &cli.App{
		Name:                  "cdc-relay",
		Usage:                 "publishes the rows of a Postgres outbox table to RabbitMQ",
		Description:           appDescription,
		Commands:              commands,
		Reader:                p.terminal.In,
		Writer:                p.terminal.Out,
		ErrWriter:             p.terminal.Err,
		HideVersion:           true,
		EnableBashCompletion:  true,
		CustomAppHelpTemplate: appHelp,
		Flags:                 []cli.Flag{&cli.BoolFlag{Name: "version", Usage: "the same as the command version"}},
		Before: func(c *cli.Context) error {
			if !c.Bool("version") {
				return nil
			}
			p.writeVersion(buildInfo())
			return flag.ErrHelp // nothing else to run
		},
		ExitErrHandler: func(*cli.Context, error) {}, // report prints the error
		OnUsageError: func(_ *cli.Context, err error, _ bool) error {
			return flagError(err, "", nil, commands)
		},
		Action: func(c *cli.Context) error {
			if name := c.Args().First(); name != "" {
				return unknownCommand("", name, commands)
			}
			if err := cli.ShowAppHelp(c); err != nil {
				return err
			}
			return usagef("no command given, want one of %s", names(commands))
		},
	}
}

// finish sets the fields that all commands share, also on subcommands. The path is what the user types after cdc-relay.
func (p *process) finish(command *cli.Command, path string) {
	command.BashComplete = p.complete(command)
	command.CustomHelpTemplate = commandHelp(slices.ContainsFunc(settings.FlagsOf(command.Flags), advanced))
	command.HideHelpCommand = true
	command.OnUsageError = func(_ *cli.Context, err error, _ bool) error {
		return flagError(err, path, command.Flags, nil)
	}
	if len(command.Subcommands) == 0 {
		return
	}
	command.CustomHelpTemplate = groupHelp()
	alone := command.Action // set for a command with subcommands that also runs without one
	command.Action = func(c *cli.Context) error {
		if name := c.Args().First(); name != "" {
			return unknownCommand(path, name, command.Subcommands)
		}
		if alone != nil {
			return alone(c)
		}
		return usagef("%s: no command given, want one of %s", path, names(command.Subcommands))
	}
	for _, sub := range command.Subcommands {
		p.finish(sub, path+" "+sub.Name)
	}
}

func advanced(f *settings.Flag) bool { return f.Advanced }

func names(commands []*cli.Command) string {
	var all []string
	for _, command := range commands {
		if !command.Hidden {
			all = append(all, command.Name)
		}
	}
	return strings.Join(all, ", ")
}

func unknownCommand(path, name string, commands []*cli.Command) error {
	var known []string
	for _, command := range commands {
		known = append(known, command.Name)
	}
	if near := settings.Nearest(name, known); near != "" {
		return usagef("%sunknown command %q, did you mean %q?", prefix(path), name, near)
	}
	return usagef("%sunknown command %q, want one of %s", prefix(path), name, names(commands))
}

// prefix returns the name of the command that a message is about.
func prefix(path string) string {
	if path == "" {
		return ""
	}
	return path + ": "
}

package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/terminal"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
)

// Exit codes. A second signal during the drain exits with 128 + its number.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
	// exitNotFound: the message that the command names does not exist.
	exitNotFound = 3
	// exitWarning and exitCritical are for stats --exit-code.
	exitWarning  = 10
	exitCritical = 11
)

// process holds the parts of the operating system that the command line uses. Tests replace them and call run directly.
type process struct {
	args      []string
	terminal  terminal.Terminal
	lookupEnv func(string) (string, bool)
	environ   func() []string
	signals   <-chan os.Signal

	log     *slog.Logger   // of a service; logger creates it
	address pgdial.Address // of the command, once its settings were read
}

// sameStop is how long further signals count as the first one: timeout(1) and some supervisors signal the process, and
// then its whole group.
const sameStop = 100 * time.Millisecond

// lastLines is how long the end of the process waits for the reader of its last lines.
const lastLines = time.Second

// run runs one command and returns the exit code. The first signal cancels the command's context; the second exits at
// once.
func (p *process) run(ctx context.Context) int {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if p.cannotComplete() {
		return exitDone
	}

	done := make(chan int, 1)
	go func() { done <- p.report(p.app().RunContext(ctx, protectIDs(p.args))) }()

	var stopped time.Time // when the first signal came
	for {
		select {
		case code := <-done:
			return code
		case sig := <-p.signals:
			switch {
			case stopped.IsZero():
				stopped = time.Now()
				cancel()
			case time.Since(stopped) > sameStop:
				const told = lastLines / 10
				go func() {
					fmt.Fprintf(p.terminal.Err, "cdc-relay: second %s: exiting at once\n", sig)
					p.terminal.FlushErr(told)
					done <- exitCodeOf(sig)
				}()
				select {
				case <-done:
				case <-time.After(told): // nobody reads the standard error
				}
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

// report prints the error in one line, or each mistake of the user in a line, and then the hint. It returns the exit
// code.
func (p *process) report(err error) int {
	defer p.terminal.FlushErr(lastLines)
	if p.log != nil {
		event.Flush(p.log)
	}
	if err == nil || errors.Is(err, flag.ErrHelp) { // the help page is printed already
		return exitDone
	}
	if failure.IsLogged(err) {
		return exitFailed
	}
	var found unwell
	if errors.As(err, &found) {
		return found.exitCode()
	}
	lines := failure.Lines(err)
	for _, line := range lines {
		fmt.Fprintf(p.terminal.Err, "cdc-relay: %s\n", line)
	}
	if hint := cmp.Or(p.address.Hint(err), hintOfMissing(lines)); hint != "" {
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

// commandGroup is what commands are for, as the help page groups them.
type commandGroup struct {
	title    string
	commands []*cli.Command
}

func (p *process) commandGroups() []commandGroup {
	return []commandGroup{
		{"SET UP", []*cli.Command{
			p.setupCommand(), p.checkCommand(), p.configCommand(), p.adoptCommand(), p.teardownCommand(),
		}},
		{"RUN", []*cli.Command{p.runCommand(), p.drainCommand()}},
		{"LOOK", []*cli.Command{
			p.statsCommand(), p.consoleCommand(), p.listCommand(), p.explainCommand(), p.keysCommand(),
		}},
		{"CHANGE", []*cli.Command{p.resendCommand(), p.deleteCommand()}},
		{"TRY", []*cli.Command{p.demoCommand(), p.completionCommand(), p.manCommand()}},
	}
}

func (p *process) app() *cli.App {
	groups := p.commandGroups()
	var commands []*cli.Command
	for _, group := range groups {
		commands = append(commands, group.commands...)
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
		CustomAppHelpTemplate: appHelp(groups),
		Flags:                 []cli.Flag{&cli.BoolFlag{Name: "version", Usage: "show version, commit and Go version"}},
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
	command.CustomHelpTemplate = commandHelp(command)
	command.HideHelpCommand = true
	command.OnUsageError = func(_ *cli.Context, err error, _ bool) error {
		return flagError(err, path, command.Flags, nil)
	}
	if len(command.Subcommands) == 0 {
		return
	}
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

const appDescription = `Applications INSERT a row into the outbox table, in their own transaction. cdc-relay
reads what was committed, publishes it to RabbitMQ with publisher confirms, and deletes
the row once RabbitMQ has confirmed it.

FIRST STEPS

  export CDC_RELAY_DATABASE_URL=postgres://user:password@localhost:5432/shop
  export CDC_RELAY_AMQP_URL=amqp://guest:guest@localhost:5672/
  cdc-relay setup               # creates the tables, the publication and the replication slot
  cdc-relay run &               # the service
  cdc-relay demo --count 5      # inserts five orders and shows them arrive
  cdc-relay stats               # is all well? what waits, what fails, and what to type`

const configurationHelp = `
Each flag with an environment variable next to it can also be set by that variable, or by
its name in the YAML file of --config. A flag overrides the environment, and the environment
overrides the file. Put URLs with a password into the environment or a file: other users of
the machine can see flags.
`

// exitCodesHelp lists the exit codes of a command.
func exitCodesHelp(command string) string {
	codes := `
EXIT CODES

  0    done
  1    failed
  2    wrong flag, environment variable or configuration file
`
	switch command {
	case "list", "explain", "resend", "delete":
		codes += "  3    no message has that ID\n"
	case "stats":
		codes += "  10, 11: with --exit-code, the verdict is a warning, or critical\n"
	case "run", "drain", "console", "demo":
		codes += "  130, 143: a second Ctrl-C or SIGTERM interrupted the shutdown\n"
	}
	return codes
}

// appHelp is the help template of the program.
func appHelp(groups []commandGroup) string {
	var b strings.Builder
	b.WriteString("cdc-relay {{.Usage}}\n\n  cdc-relay COMMAND [FLAGS]\n\n{{.Description}}\n")
	for _, group := range groups {
		fmt.Fprintf(&b, "\n%s\n\n", group.title)
		for _, command := range group.commands {
			if !command.Hidden {
				fmt.Fprintf(&b, "  %-11s %s\n", command.Name, command.Usage)
			}
		}
	}
	b.WriteString(`
"cdc-relay COMMAND --help" explains a command, "cdc-relay --version" shows the version.
` + exitCodesHelp(""))
	return b.String()
}

// commandHelp is the help template of a command. The advanced flags come last. Those that relays tell are one line.
func commandHelp(command *cli.Command) string {
	var b strings.Builder
	b.WriteString("{{.HelpName}}: {{.Usage}}\n\n  {{.UsageText}}\n\n{{.Description}}\n")
	if len(command.Subcommands) > 0 {
		b.WriteString("\nCOMMANDS\n\n")
	}
	for _, sub := range command.Subcommands {
		fmt.Fprintf(&b, "  %-13s %s\n", sub.Name, sub.Usage)
	}
	heading, common, advanced := "FLAGS", "", ""
	var told []string
	asks := true // the command asks the relays for the advanced ones
	for _, f := range settings.FlagsOf(command.Flags) {
		switch {
		case !f.IsVisible():
		case !f.Advanced:
			common += "\n" + f.String()
		default:
			advanced += "\n" + f.String()
			told = append(told, "--"+f.Name)
			asks = asks && f.Shared
		}
	}
	if advanced != "" && !asks {
		heading = "COMMON FLAGS"
	}
	fmt.Fprintf(&b, "\n%s\n%s\n  --help, -h\n      Show this page.\n", heading, common)
	switch {
	case advanced == "":
	case !asks:
		b.WriteString("\nADVANCED FLAGS (the defaults suit most)\n" + advanced)
	default:
		text := "The relays tell the values of other flags of run, which are flags here, too: "
		b.WriteString("\n" + strings.Join(settings.Wrap(text+strings.Join(told, ", "), 90), "\n") + "\n")
	}
	if len(command.Flags) > 0 {
		b.WriteString(configurationHelp)
	}
	return b.String() + exitCodesHelp(command.Name)
}

package main

import (
	"embed"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
)

// completions contains one script for each shell. A script calls the program with the line so far, then the current
// word if it is a flag or else an empty word, then the value of completing.
//
//go:embed completion
var completions embed.FS

// completing is the last argument of a command line that the shell wants completed.
const completing = "--generate-bash-completion"

func (p *process) completionCommand() *cli.Command {
	command := &cli.Command{
		Name:      "completion",
		Usage:     "print the completion script of a shell",
		UsageText: "cdc-relay completion bash|zsh|fish",
		Description: `Prints a script that lets the shell complete commands, flags and their values. The packages
install it. Without them:

  eval "$(cdc-relay completion bash)"   # in ~/.bashrc
  eval "$(cdc-relay completion zsh)"    # in ~/.zshrc, after compinit
  cdc-relay completion fish > ~/.config/fish/completions/cdc-relay.fish`,
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		command.Subcommands = append(command.Subcommands, &cli.Command{
			Name:        shell,
			Usage:       "print the script of " + shell,
			UsageText:   "cdc-relay completion " + shell,
			Description: "Prints the completion script of " + shell + ".",
			Action: func(*cli.Context) error {
				script, err := completions.ReadFile("completion/cdc-relay." + shell)
				if err != nil {
					return err
				}
				_, err = p.terminal.Out.Write(script)
				return err
			},
		})
	}
	return command
}

// manCommand prints the manual page. The packages install it.
func (p *process) manCommand() *cli.Command {
	return &cli.Command{
		Name:        "man",
		Usage:       "print the manual page",
		UsageText:   "cdc-relay man",
		Description: "Prints the manual page, for man -l - and for packages.",
		Hidden:      true,
		Action: func(*cli.Context) error {
			app := p.app()
			// Markdown indents code by four spaces.
			app.Description = strings.ReplaceAll(app.Description, "\n  ", "\n    ")
			app.UsageText = "cdc-relay COMMAND [FLAGS]"
			page, err := app.ToManWithSection(1)
			if err != nil {
				return err
			}
			// The library's synopsis has only the global flags.
			build := buildInfo()
			page = strings.Replace(
				page, "\n.TH cdc-relay 1\n",
				fmt.Sprintf("\n.TH CDC-RELAY 1 %q %q\n", build.Date, "cdc-relay "+build.Version), 1,
			)
			page = strings.Replace(page, "\ncdc-relay\n\n.EX\n[--version]\n.EE\n", "\n"+app.UsageText+"\n", 1)
			_, err = fmt.Fprint(p.terminal.Out, page)
			return err
		},
	}
}

// cannotComplete reports whether the line has a bare --: the library would then run the command.
func (p *process) cannotComplete() bool {
	return len(p.args) > 0 && p.args[len(p.args)-1] == completing && slices.Contains(p.args, "--")
}

// complete prints the values of an enumerated flag, or else commands or flags.
func (p *process) complete(command *cli.Command) cli.BashCompleteFunc {
	byName := cli.DefaultCompleteWithFlags(command)
	return func(c *cli.Context) {
		before := p.args[max(0, len(p.args)-3)]
		for _, s := range settings.FlagsOf(command.Flags) {
			if values := s.Choices(); before == "--"+s.Name && values != nil {
				fmt.Fprintln(p.terminal.Out, strings.Join(values, "\n"))
				return
			}
		}
		byName(c)
	}
}

package main

import (
	"errors"
	"flag"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
)

// protectIDs puts a space before each negative id, so that the flag parser does not take it for a flag. A message
// requeued with a new id has a negative one. It leaves the value of a flag alone, and the command of a handler (run
// --publisher exec -- ./handler -5).
func protectIDs(args []string) []string {
	protected := slices.Clone(args)
	for i := 1; i < len(args); i++ {
		if args[i] == "--" && slices.Contains([]string{"run", "drain"}, args[1]) {
			break
		}
		if regexp.MustCompile(`^-[0-9]+$`).MatchString(args[i]) && !wantsValue(args[i-1]) {
			protected[i] = " " + args[i]
		}
	}
	return protected
}

func wantsValue(arg string) bool {
	name := strings.TrimLeft(arg, "-")
	return name != arg && slices.ContainsFunc(slices.Concat(allSettings(), rowSettings()), func(s setting) bool {
		return s.Name == name && s.Placeholder != ""
	})
}

// argumentsOf returns the arguments that are not flags. Flags may come before and after them.
func argumentsOf(c *cli.Context) ([]string, error) {
	arguments, err := settings.Arguments(c.Command.Name, c.Command.Flags, c.Args().Slice())
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		return nil, flagError(err, commandPath(c), c.Command.Flags, nil)
	}
	return arguments, err
}

// commandPath returns what the user types after cdc-relay.
func commandPath(c *cli.Context) string { return strings.TrimPrefix(c.Command.HelpName, "cdc-relay ") }

func unexpected(c *cli.Context) error {
	return usagef("%s: unexpected argument %q", c.Command.Name, c.Args().First())
}

func usagef(format string, args ...any) error { return failure.Usagef(format, args...) }

// hintOfMissing returns the line that sets what the mistakes name as missing, or "".
func hintOfMissing(mistakes []string) string {
	line := ""
	for _, s := range []struct{ name, example string }{
		{"database-url", "postgres://user:password@localhost:5432/shop"},
		{"amqp-url", "amqp://user:password@localhost:5672/"},
	} {
		if slices.Contains(mistakes, notSet(s.name)) {
			line += " " + variable(s.name) + "=" + s.example
		}
	}
	if line == "" {
		return ""
	}
	return "export" + line
}

// notSet is the mistake that a setting has no value, as in relay.Config.Validate.
func notSet(name string) string { return "set --" + name + " or " + variable(name) }

// flagError rewrites an error of the flag package in the style of the other errors.
func flagError(err error, path string, flags []cli.Flag, commands []*cli.Command) error {
	text := err.Error()
	if name, found := strings.CutPrefix(text, "flag provided but not defined: -"); found {
		return unknownFlag(strings.TrimLeft(name, "-"), path, flags, commands)
	}
	if name, found := strings.CutPrefix(text, "flag needs an argument: -"); found {
		return usagef("%s--%s needs a value", prefix(path), strings.TrimLeft(name, "-"))
	}
	return usagef("%s%s", prefix(path), text)
}

func unknownFlag(name, path string, flags []cli.Flag, commands []*cli.Command) error {
	for _, sub := range commands {
		for _, flag := range sub.Flags {
			if flag.Names()[0] == name {
				return usagef("flags go after the command: cdc-relay COMMAND --%s", name)
			}
		}
	}
	var known []string
	for _, flag := range flags {
		known = append(known, flag.Names()[0])
	}
	if near := settings.Nearest(name, known); near != "" {
		return usagef("%sunknown flag --%s, did you mean --%s?", prefix(path), name, near)
	}
	return usagef("%sunknown flag --%s, see %s --help", prefix(path), name, strings.TrimSpace("cdc-relay "+path))
}

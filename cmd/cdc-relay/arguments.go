package main

import (
	"errors"
	"flag"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

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
	return name != arg && slices.ContainsFunc(slices.Concat(allSettings(), filterSettings()), func(s setting) bool {
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

package main

import (
	"regexp"
	"slices"
	"strings"
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
	return name != arg && slices.ContainsFunc(slices.Concat(allSettings(), filterSettings()), func(s *setting) bool {
		return s.name == name && s.value != ""
	})
}

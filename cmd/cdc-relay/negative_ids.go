package main

import (
	"regexp"
	"slices"
	"strings"
)

// protectIDs lets the ids of rows pass that are below zero, as those of messages that were sent back with a new id are:
// with a blank before it, no parser of flags takes -5 for a flag. After a flag that wants a value it is left alone, and so
// is the command line of a handler (run --publisher exec -- ./handler -5).
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

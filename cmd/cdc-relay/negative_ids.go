package main

import (
	"regexp"
	"slices"
	"strings"
)

// protectIDs lets the ids of rows pass that are below zero, as those of messages that were sent back with a new id are:
// with a blank before it, no parser of flags takes -5 for a flag. After a flag that wants a value it is left alone.
func protectIDs(args []string) []string {
	protected := slices.Clone(args)
	for i := 1; i < len(args) && args[i] != "--"; i++ {
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

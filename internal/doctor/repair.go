package doctor

import (
	"regexp"
	"slices"
	"strings"
)

// Repairs returns the fixes that only add something or grant a privilege that a relay needs, so they are safe to run
// without review. A fix is returned complete or not at all.
func Repairs(findings []Finding) []string {
	var repairs []string
	for _, f := range findings {
		var commands []string
		for _, line := range f.Fix {
			if command := withoutRemark(line); command != "" {
				commands = append(commands, command)
			}
		}
		if f.Level == OK || slices.ContainsFunc(commands, func(command string) bool { return !harmless(command) }) {
			continue
		}
		for _, command := range commands {
			if !slices.Contains(repairs, command) {
				repairs = append(repairs, command)
			}
		}
	}
	return repairs
}

// withoutRemark returns "" for a line that is only a remark.
func withoutRemark(line string) string {
	if strings.HasPrefix(line, "--") || strings.HasPrefix(line, "#") {
		return ""
	}
	command, _, _ := strings.Cut(line, "  # ")
	if before, _, found := strings.Cut(command, ";  -- "); found {
		command = before + ";"
	}
	return strings.TrimSpace(command)
}

func harmless(command string) bool {
	const name = `("([^"]|"")*"|[a-z0-9_]+)`
	const table = name + `(\.` + name + `)?`
	return regexp.MustCompile(`^(cdc-relay (setup|migrate up)( |$)|GRANT [A-Z, ]+ ON |GRANT pg_read_all_stats TO |CREATE PUBLICATION ` +
		`|ALTER PUBLICATION ` + name + ` ADD TABLE |ALTER TABLE ` + table + ` (SET \(autovacuum_|RESET \(autovacuum_enabled\)|ALTER COLUMN ` + name + ` SET DEFAULT ))`).MatchString(command)
}

package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
)

var update = flag.Bool("update", false, "write docs/configuration.md again") //nolint:gochecknoglobals // a flag must be global

// sections are the lists of the reference, by the marks around them.
func sections() map[string][]setting {
	return map[string][]setting{
		"connections": connectionSettings(),
		"publishing":  relaySettings(),
		"retries":     retrySettings(),
		"service":     serviceSettings(),
	}
}

// The text between the marks is generated from the settings. go test ./cmd/cdc-relay -run TestReferencePage -update
// writes it.
func TestReferencePageMatchesTheFlags(t *testing.T) {
	text := readDoc(t, "configuration.md")
	made := text
	for name, section := range sections() {
		begin, end := "<!-- generated from the flags: "+name+" -->\n", "<!-- end -->"
		before, rest, found := strings.Cut(made, begin)
		_, after, closed := strings.Cut(rest, end)
		if !found || !closed {
			t.Fatalf("docs/configuration.md has no part %q", strings.TrimSpace(begin))
		}
		made = before + begin + "\n" + reference(section) + "\n" + end + after
	}
	if made == text {
		return
	}
	if !*update {
		t.Fatal("docs/configuration.md differs from the flags; to write it: go test ./cmd/cdc-relay -run TestReferencePage -update")
	}
	must(t, os.WriteFile(docsFolder+"configuration.md", []byte(made), 0o644))
}

func reference(section []setting) string {
	var b strings.Builder
	extra := notes()
	for _, s := range section {
		flag, n := "--"+s.Name, extra[s.Name]
		if strings.Contains(s.Placeholder, "|") {
			flag += " " + s.Placeholder
		}
		var limits []string
		if byDefault := defaultOf(s); byDefault != "" {
			limits = append(limits, "`"+byDefault+"`")
		}
		if n.values != "" {
			limits = append(limits, n.values)
		}
		head := "`" + flag + "`"
		if len(limits) > 0 {
			head += " (" + strings.Join(limits, "; ") + ")"
		}
		item := strings.TrimSpace(head + ": " + asMarkdown(s.Usage) + " " + n.advice)
		fmt.Fprintf(&b, "- %s\n", strings.Join(settings.Wrap(item, 118), "\n  "))
	}
	return b.String()
}

// asMarkdown formats flags and paths in a help text as code.
func asMarkdown(usage string) string {
	usage, _, _ = strings.Cut(usage, " Default: ") // it has its own column
	code := regexp.MustCompile(`--[a-z][a-z-]+( block)?|/livez|/readyz|/metrics|/settings|\w+://([^ ,;]*[^ ,;.:])?`)
	return code.ReplaceAllString(usage, "`$0`")
}

// takersOf returns the commands with the flag of that name.
func takersOf(name string) []string {
	return takers(func(s *settings.Flag) bool { return s.Accepts(name) })
}

// takers returns the commands with such a flag, in the order of the help page.
func takers(match func(*settings.Flag) bool) (paths []string) {
	add := func(command *cli.Command, path string) {
		for _, f := range command.Flags {
			if s, ok := f.(*settings.Flag); ok && match(s) {
				paths = append(paths, path)
			}
		}
	}
	for _, command := range (&process{}).app().Commands {
		add(command, command.Name)
		for _, sub := range command.Subcommands {
			add(sub, command.Name+" "+sub.Name)
		}
	}
	return paths
}

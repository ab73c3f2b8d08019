package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

var update = flag.Bool("update", false, "write docs/configuration.md again") //nolint:gochecknoglobals // as flags are

// sections are the tables of the reference, by the marks around them.
func sections() map[string][]*setting {
	return map[string][]*setting{
		"connections": connectionSettings(),
		"publishing":  relaySettings(),
		"retries":     retrySettings(),
		"service":     serviceSettings(),
		"commands":    slices.Concat(commandSettings(), lookingSettings(), checkSettings(), adoptSettings(), consoleSettings()),
	}
}

// TestTheReferenceIsThatOfTheFlags: what stands between the marks is made from the settings.
// go test ./cmd/cdc-relay -run TestTheReference -update writes it.
func TestTheReferenceIsThatOfTheFlags(t *testing.T) {
	text := readDoc(t, "configuration.md")
	made := text
	for name, settings := range sections() {
		begin, end := "<!-- generated from the flags: "+name+" -->\n", "<!-- end -->"
		before, rest, found := strings.Cut(made, begin)
		_, after, closed := strings.Cut(rest, end)
		if !found || !closed {
			t.Fatalf("docs/configuration.md has no part %q", strings.TrimSpace(begin))
		}
		made = before + begin + "\n" + referenceTable(t, settings, name == "commands") + "\n" + end + after
	}
	if made == text {
		return
	}
	if !*update {
		t.Fatal("docs/configuration.md is not that of the flags; to write it: go test ./cmd/cdc-relay -run TestTheReference -update")
	}
	if err := os.WriteFile(docsFolder+"configuration.md", []byte(made), 0o644); err != nil {
		t.Fatal(err)
	}
}

func referenceTable(t *testing.T, settings []*setting, ofCommands bool) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("| flag | default | values | meaning |\n|---|---|---|---|\n")
	extra, takers := notes(), commandsByFlag()
	for _, s := range settings {
		n := extra[s.name]
		values := n.values
		switch {
		case s.value == "":
			values = "`true`, `false`"
		case strings.Contains(s.value, "|"):
			values = "`" + strings.ReplaceAll(s.value, "|", "`, `") + "`"
		case values == "":
			t.Fatalf("reference_notes_test.go says nothing of the values of --%s", s.name)
		}
		byDefault := defaultOf(s)
		if byDefault != "none" {
			byDefault = "`" + byDefault + "`"
		}
		meaning := asMarkdown(s.usage)
		if ofCommands {
			meaning = "`" + strings.Join(takers[s.name], "`, `") + "`: " + meaning
		}
		if n.advice != "" {
			meaning += " " + n.advice
		}
		fmt.Fprintf(&b, "| `--%s` | %s | %s | %s |\n", s.name, byDefault, values, meaning)
	}
	return b.String()
}

// asMarkdown sets flags and paths in a text of the help page as code.
func asMarkdown(usage string) string {
	usage, _, _ = strings.Cut(usage, " Default: ") // has a column of its own
	code := regexp.MustCompile(`--[a-z][a-z-]+( block)?|/livez|/readyz|/metrics|\w+://([^ ,;]*[^ ,;.:])?`)
	return strings.ReplaceAll(code.ReplaceAllString(usage, "`$0`"), "|", `\|`)
}

// commandsByFlag are the commands that take a flag, in the order of the help page.
func commandsByFlag() map[string][]string {
	takers := make(map[string][]string)
	add := func(command *cli.Command, path string) {
		for _, f := range command.Flags {
			if s, ok := f.(*setting); ok {
				takers[s.name] = append(takers[s.name], path)
			}
		}
	}
	for _, command := range (&process{}).app().Commands {
		add(command, command.Name)
		for _, sub := range command.Subcommands {
			add(sub, command.Name+" "+sub.Name)
		}
	}
	return takers
}

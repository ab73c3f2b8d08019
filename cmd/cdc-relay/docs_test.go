package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

const docsFolder = "../../docs/"

func readDoc(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(docsFolder + name)
	must(t, err)
	return string(text)
}

// documentedSetting is one row of the tables in docs/configuration.md: the placeholder for the value, the default, and
// the range.
type documentedSetting struct{ value, byDefault, values string }

func documentedSettings(t *testing.T) map[string]documentedSetting {
	t.Helper()
	line := regexp.MustCompile("(?m)^- `--([a-z-]+) ?([^`]*)`(?: \\((?:`([^`]*)`)?(?:; )?(.*?)\\))?:")
	_, text, _ := strings.Cut(readDoc(t, "configuration.md"), "<!-- generated")
	text, _, _ = strings.Cut(text, "## Message filters")
	found := make(map[string]documentedSetting)
	for _, m := range line.FindAllStringSubmatch(text, -1) {
		if _, twice := found[m[1]]; twice {
			t.Errorf("docs/configuration.md: --%s is listed twice", m[1])
		}
		found[m[1]] = documentedSetting{value: m[2], byDefault: m[3], values: m[4]}
	}
	return found
}

// defaultOf returns the default as docs/configuration.md writes it.
func defaultOf(s setting) string {
	if s.Placeholder == "" {
		return "" // a switch
	}
	text, _, _ := strings.Cut(s.Default, ", ") // "'', the default exchange"
	return text
}

// Settings of the relay are in the reference, settings of single commands on any page.
func TestDocsNameEverySetting(t *testing.T) {
	found := documentedSettings(t)
	inReference := make(map[string]bool)
	for _, settings := range sections() {
		for _, s := range settings {
			inReference[s.Name] = true
		}
	}
	var all strings.Builder
	for _, text := range pages(t) {
		all.WriteString(text)
	}
	for _, s := range allSettings() {
		doc, ok := found[s.Name]
		if !ok && (inReference[s.Name] || !strings.Contains(all.String(), "--"+s.Name) && !strings.Contains(all.String(), "`"+s.Name+"`")) {
			t.Errorf("the docs do not name --%s", s.Name)
		}
		if !ok {
			continue
		}
		delete(found, s.Name)
		if doc.byDefault != defaultOf(s) {
			t.Errorf("docs/configuration.md: --%s has the default %q, want %q", s.Name, doc.byDefault, defaultOf(s))
		}
		if strings.Contains(s.Placeholder, "|") && doc.value != s.Placeholder {
			t.Errorf("docs/configuration.md: --%s has the value %q, want %q", s.Name, doc.value, s.Placeholder)
		}
	}
	for name := range found {
		t.Errorf("docs/configuration.md has a line for --%s, which does not exist", name)
	}
}

// The documented ranges are those of relay.Config.Validate and the command line: the limit is accepted, and the value
// beyond it is not.
func TestDocumentedRangesAreEnforced(t *testing.T) {
	found := documentedSettings(t)
	settings := make(map[string]setting)
	for _, s := range allSettings() {
		settings[s.Name] = s
	}
	accepts := func(name, text string) bool {
		cfg := defaultConfig()
		cfg.relay.DatabaseURL = "postgres://localhost/shop"
		return settings[name].Set(cfg, text) == nil && cfg.validate() == nil
	}
	between := regexp.MustCompile("^(\\d+) to (\\d+)(, or `\\w+`)?$")
	from := regexp.MustCompile("^from `(\\w+)`$")
	checked := 0
	for name, doc := range found {
		if m := between.FindStringSubmatch(doc.values); m != nil && settings[name].Placeholder == "NUMBER" {
			checked++
			if !accepts(name, m[1]) || !accepts(name, m[2]) || accepts(name, m[2]+"0") || accepts(name, "-1") {
				t.Errorf("docs/configuration.md: --%s does not take %s", name, doc.values)
			}
		}
		if m := from.FindStringSubmatch(doc.values); m != nil {
			checked++
			least, err := time.ParseDuration(m[1])
			if err != nil || !accepts(name, m[1]) || accepts(name, (least-time.Millisecond).String()) {
				t.Errorf("docs/configuration.md: --%s does not take %s", name, doc.values)
			}
		}
	}
	if checked < 7 {
		t.Errorf("only %d ranges were found in docs/configuration.md", checked)
	}
}

func TestDocumentedConfigurationFileIsValid(t *testing.T) {
	_, rest, found := strings.Cut(readDoc(t, "configuration.md"), "```yaml\n")
	example, _, closed := strings.Cut(rest, "```")
	if !found || !closed {
		t.Fatal("docs/configuration.md has no example of the file")
	}
	name := t.TempDir() + "/relay.yaml"
	must(t, os.WriteFile(name, []byte(example), 0o600))
	cfg := defaultConfig()
	must(t, readConfig(name, cfg))
	if err := cfg.validate(); err != nil {
		t.Error(err)
	}
}

// Filters are flags only, and have a section of their own.
func TestDocsNameEveryFilter(t *testing.T) {
	text := readDoc(t, "configuration.md")
	_, part, _ := strings.Cut(text, "## Message filters")
	part, _, _ = strings.Cut(part, "Filters, ")
	found := make(map[string]bool)
	for _, m := range regexp.MustCompile("`--([a-z-]+)`").FindAllStringSubmatch(part, -1) {
		found[m[1]] = true
	}
	for _, s := range append(filterSettings(), allSetting()) {
		if !found[s.Name] {
			t.Errorf("docs/configuration.md does not name the filter --%s", s.Name)
		}
		delete(found, s.Name)
	}
	for name := range found {
		t.Errorf("docs/configuration.md has a filter --%s, which does not exist", name)
	}
}

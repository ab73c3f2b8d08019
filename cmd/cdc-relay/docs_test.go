package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

// A promise whose test was renamed or removed has no proof.
func TestTestsNamedInTheDocsExist(t *testing.T) {
	files, err := filepath.Glob("../../test/e2e/*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests found: %v", err)
	}
	var tests strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(t, err)
		tests.Write(text)
	}
	_, part, _ := strings.Cut(readDoc(t, "../CONTRIBUTING.md"), "## Tests of the promises")
	part, _, _ = strings.Cut(part, "\n## ")
	named := regexp.MustCompile("`(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(part, -1)
	if len(named) == 0 {
		t.Error("CONTRIBUTING.md names no tests")
	}
	for _, name := range named {
		if !strings.Contains(tests.String(), "\nfunc "+name[1]+"(") {
			t.Errorf("CONTRIBUTING.md names %s, which e2e does not have", name[1])
		}
	}
}

// The new names in the tables of the page are flags, commands and metrics of the program, or stand in the reference.
func TestNewNamesOfTheMigrationPageExist(t *testing.T) {
	reference := ""
	for _, name := range []string{"contract.md", "commands.md", "delivery.md", "functions.md", "../clients/python/README.md", "../examples/exec/README.md"} {
		reference += readDoc(t, name)
	}
	metrics, app, checked := registered(t), (&process{}).app(), 0
	for _, row := range regexp.MustCompile(`(?m)^\|.*\|(.*)\|$`).FindAllStringSubmatch(readDoc(t, "migrate.md"), -1) {
		for _, code := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			checked++
			name, flag, _ := strings.Cut(strings.TrimPrefix(code[1], "cdc-relay "), " --")
			flag, _, _ = strings.Cut(flag, " ")
			switch {
			case strings.HasPrefix(name, "--"):
				if name, _, _ = strings.Cut(strings.TrimPrefix(name, "--"), " "); len(takersOf(name)) == 0 {
					t.Errorf("no command takes --%s", name)
				}
			case app.Command(name) != nil && (flag != "" || strings.HasPrefix(code[1], "cdc-relay ")):
				if flag != "" && !slices.Contains(takersOf(flag), name) {
					t.Errorf("cdc-relay %s takes no --%s", name, flag)
				}
			case strings.HasPrefix(name, "cdc_relay_"):
				if !metrics[name] {
					t.Errorf("there is no metric %s", name)
				}
			case strings.HasPrefix(name, "manage.py "):
				file := docsFolder + "../clients/python/cdc_relay/django/management/commands/" + strings.TrimPrefix(name, "manage.py ") + ".py"
				if _, err := os.Stat(file); err != nil && name != "manage.py check" { // Django's own
					t.Error(err)
				}
			case !strings.Contains(reference, "`"+name) && !strings.Contains(reference, name+"`"):
				t.Errorf("the reference has no `%s`", name)
			}
		}
	}
	if checked < 80 {
		t.Errorf("only %d names were found", checked)
	}
}

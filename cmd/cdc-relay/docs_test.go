package main

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
)

const docsFolder = "../../docs/"

func readDoc(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(docsFolder + name)
	must(t, err)
	return string(text)
}

// defaultOf returns the default as docs/configuration.md writes it.
func defaultOf(s setting) string {
	if s.Placeholder == "" {
		return "" // a switch
	}
	text, _, _ := strings.Cut(s.Default, ", ") // "'', the default exchange"
	return text
}

// Settings of the relay are in the reference, which is generated; settings of single commands are on any page.
func TestDocsNameEverySetting(t *testing.T) {
	all := strings.Join(slices.Collect(maps.Values(pages(t))), "\n")
	for _, s := range allSettings() {
		if !strings.Contains(all, "--"+s.Name) && !strings.Contains(all, "`"+s.Name+"`") {
			t.Errorf("the docs do not name --%s", s.Name)
		}
	}
}

// The documented ranges are those of relay.Config.Validate and the command line: the limit is accepted, and the value
// beyond it is not.
func TestDocumentedRangesAreEnforced(t *testing.T) {
	accepts := func(s setting, text string) bool {
		cfg := defaultConfig()
		cfg.relay.DatabaseURL = "postgres://localhost/shop"
		return s.Set(cfg, text) == nil && cfg.validate() == nil
	}
	between := regexp.MustCompile("^[^:]*?(\\d+) to (\\d+)(?:, or `\\w+`)?\\): ")
	from := regexp.MustCompile("^[^:]*; from `(\\w+)`\\): ")
	checked := 0
	for part, section := range sections() {
		for i, item := range referenceItems(t, part) {
			s := section[i]
			if m := between.FindStringSubmatch(item); m != nil {
				checked++
				if !accepts(s, m[1]) || !accepts(s, m[2]) || accepts(s, m[2]+"0") || accepts(s, "-1") {
					t.Errorf("the range is another one: %s", item)
				}
			}
			if m := from.FindStringSubmatch(item); m != nil {
				checked++
				least, err := time.ParseDuration(m[1])
				if err != nil || !accepts(s, m[1]) || accepts(s, (least-time.Millisecond).String()) {
					t.Errorf("the range is another one: %s", item)
				}
			}
		}
	}
	if checked < 7 {
		t.Errorf("only %d ranges were found", checked)
	}
}

// wantSame expects that a page lists each name once, and no others.
func wantSame(t *testing.T, page string, listed, exist []string) {
	t.Helper()
	counts := make(map[string]int)
	for _, name := range listed {
		counts[name]++
		if !slices.Contains(exist, name) {
			t.Errorf("docs/%s lists %s, which does not exist", page, name)
		}
	}
	for _, name := range exist {
		if counts[name] != 1 {
			t.Errorf("docs/%s lists %s %d times", page, name, counts[name])
		}
	}
	if len(exist) < 5 {
		t.Errorf("docs/%s: only %q exist", page, exist)
	}
}

// namesIn returns the names in the first group of all matches, without their quotes.
func namesIn(text, pattern string) (names []string) {
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		names = append(names, strings.FieldsFunc(m[1], func(r rune) bool { return strings.ContainsRune("` ,\n", r) })...)
	}
	return names
}

func TestPagesListWhatExists(t *testing.T) {
	var filters []string
	for _, s := range append(filterSettings(), allSetting()) {
		filters = append(filters, "--"+s.Name)
	}
	_, filtering, _ := strings.Cut(readDoc(t, "configuration.md"), "## Message filters")
	filtering, _, _ = strings.Cut(filtering, "\n- **")
	wantSame(t, "configuration.md", slices.Compact(sorted(namesIn(filtering, "`(--[a-z-]+)`"))), filters)
	wantSame(t, "metrics.md", namesIn(readDoc(t, "metrics.md"), "(?m)^- `(cdc_relay_[a-z_]+)`"), slices.Collect(maps.Keys(registered(t))))
	wantSame(t, "events.md", documentedEvents(t), loggedEvents(t))
	const areas = "postgres|tables|grants|publication|slot|cleanup|rabbitmq|routing|relays"
	checks := namesIn(readDoc(t, "check.md"), "(?m)^- `(?:"+areas+")` ((?:`[a-z_]+`(?:,\\s+)?)+):")
	wantSame(t, "check.md", slices.Compact(sorted(checks)), namesOfChecks(t)) // several areas have a login

	// The index is the only list of pages: the site's sidebar is generated from it.
	index, names := readDoc(t, "README.md"), slices.Collect(maps.Keys(pages(t)))
	names = slices.DeleteFunc(names, func(name string) bool { return name == "index" || name == "README.md" })
	wantSame(t, "README.md", namesIn(index, `(?m)^- \[[^]]+\]\(([a-z-]+\.md)\): .+$`), names)
	if n := strings.Count(index, "\n- "); n != len(names) {
		t.Errorf("%d of %d lines of docs/README.md have the form `- [Title](page.md): question`", len(names), n)
	}
	for _, group := range []string{"Start", "Use", "Operate", "Look up"} {
		if !strings.Contains(index, "\n## "+group+"\n\n- [") {
			t.Errorf("docs/README.md has no group %s", group)
		}
	}
}

// namesOfChecks returns the names of all findings, on which scripts rely.
func namesOfChecks(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("internal/doctor/*.go")
	must(t, err)
	var names []string
	for _, file := range append(files, "internal/doctor/checks.sql") {
		text, err := os.ReadFile(file)
		must(t, err)
		names = append(names, namesIn(string(text), `(?:judgeDropped\(c, q, s, |\.(?:ok|warn|wrong|unknown|add)\(\s*(?:\w+, )?|name, effect :?= )"([a-z_]+)"`)...)
		names = append(names, namesIn(string(text), `(?m)^-- [a-z]+ ([a-z_ ]+)$`)...)
	}
	return slices.Compact(sorted(names))
}

// A promise whose test was renamed or removed has no proof.
func TestTestsNamedInTheDocsExist(t *testing.T) {
	files, err := filepath.Glob("../../test/e2e/*_test.go")
	must(t, err)
	tests := ""
	for _, file := range files {
		tests += readDoc(t, "../test/e2e/"+filepath.Base(file))
	}
	_, part, _ := strings.Cut(readDoc(t, "../CONTRIBUTING.md"), "## Tests of the promises")
	part, _, _ = strings.Cut(part, "\n## ")
	named := namesIn(part, "`(Test[A-Za-z0-9]+)`")
	for _, name := range named {
		if !strings.Contains(tests, "\nfunc "+name+"(") {
			t.Errorf("CONTRIBUTING.md names %s, which e2e does not have", name)
		}
	}
	if len(named) == 0 {
		t.Error("CONTRIBUTING.md names no tests")
	}
}

// sections are the lists of the reference, by the marks around them.
func sections() map[string][]setting {
	return map[string][]setting{
		"connections": connectionSettings(),
		"publishing":  relaySettings(),
		"retries":     retrySettings(),
		"service":     serviceSettings(),
	}
}

// referenceItems returns the items of a part of the reference, each on one line.
func referenceItems(t *testing.T, part string) []string {
	t.Helper()
	_, text, _ := strings.Cut(readDoc(t, "configuration.md"), "<!-- checked against the flags: "+part+" -->\n")
	text, _, _ = strings.Cut(text, "\n<!-- end -->")
	return strings.Split(strings.TrimSpace(strings.ReplaceAll(text, "\n  ", " ")), "\n")
}

// Each item has the values of a flag, its default and its help text. Its range and advice may follow.
func TestReferencePageMatchesTheFlags(t *testing.T) {
	for part, section := range sections() {
		items := referenceItems(t, part)
		if len(items) != len(section) {
			t.Fatalf("docs/configuration.md has %d items of %q, want %d", len(items), part, len(section))
		}
		for i, s := range section {
			flag, limits := "--"+s.Name, `( \([^\n]*?\))?`
			if strings.Contains(s.Placeholder, "|") {
				flag += " " + s.Placeholder
			}
			if byDefault := defaultOf(s); byDefault != "" {
				limits = regexp.QuoteMeta(" (`"+byDefault+"`") + `(; [^\n]*?)?\)`
			}
			head, usage := regexp.QuoteMeta("- `"+flag+"`"), asMarkdown(s.Usage)
			item := "^" + head + limits + ": " + regexp.QuoteMeta(usage) + "( |$)"
			if !regexp.MustCompile(item).MatchString(items[i]) {
				t.Errorf("docs/configuration.md: want `%s` (`%s`): %s\ngot %s", flag, defaultOf(s), usage, items[i])
			}
		}
	}
}

// asMarkdown formats flags and paths in a help text as code.
func asMarkdown(usage string) string {
	usage, _, _ = strings.Cut(usage, " Default: ") // it has its own column
	code := regexp.MustCompile(`--[a-z][a-z-]+( block)?|/livez|/readyz|/metrics|\w+://([^ ,;]*[^ ,;.:])?`)
	return code.ReplaceAllString(usage, "`$0`")
}

func takersOf(name string) []string {
	return takers(func(s *settings.Flag) bool { return s.Name == name })
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

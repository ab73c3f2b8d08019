package main

import (
	"flag"
	"fmt"
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
	code := regexp.MustCompile(`--[a-z][a-z-]+( block)?|/livez|/readyz|/metrics|\w+://([^ ,;]*[^ ,;.:])?`)
	return code.ReplaceAllString(usage, "`$0`")
}

// takersOf returns the commands with the flag of that name.
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

// note is what the reference adds to the help text of a setting: the range of values, and advice for changing it.
type note struct{ values, advice string }

func notes() map[string]note {
	return map[string]note{
		"database-url":      {"", "Not a [pooler](managed-services.md#connection-poolers)."},
		"database-url-file": {"", ""},
		"amqp-url":          {"", "Needed with `--publisher amqp`. See [AMQP URL](#amqp-url)."},
		"table":             {"at most 51 bytes without the schema", ""},
		"shard":             {"", "See [shards](scaling.md)."},
		"slot":              {"1 to 63 of `a-z`, `0-9`, `_`", "Slots belong to the whole server: use one for each database and table."},
		"publication":       {"1 to 63 bytes", "Use one for each table of a database."},
		"failover-slot":     {"", "A flag of `setup` only. See [failover](operations.md#failover)."},
		"mode":              {"", "With `poll`, messages wait up to about `--poll-interval`."},

		"exchange":            {"at most 255 bytes", ""},
		"header-columns":      {"", "See [columns of your own](contract.md#columns-of-your-own)."},
		"ordering-key-header": {"at most 255 bytes", "For a [consistent hash exchange](consumers.md#order-behind-the-queue)."},
		"max-in-flight":       {"1 to 100000", "[Sizing](sizing.md#rates)."},
		"poll-interval":       {"from `10ms`", "Scheduled messages and retries can be this late."},
		"send-timeout":        {"from `100ms`", "After that, the message is published again, marked."},
		"shutdown-timeout":    {"from `0s`", "Set it below the time after which the supervisor kills."},

		"max-retries":           {"0 to 1000, or `unlimited`", "A row's [`max_attempts`](contract.md#outbox) replaces it; 0 there is `unlimited` here."},
		"backoff-time":          {"from `0s`", ""},
		"max-backoff":           {"from `0s`", ""},
		"dead-letter-retention": {"", "Needs DELETE on the dead-letter table."},
		"keep-published":        {"", "Doubles the work of Postgres: [history](commands.md#published)."},
		"on-dead-letter":        {"", "See [ordering keys](ordering-keys.md#block-or-continue)."},
		"events-exchange":       {"at most 255 bytes", "See [notices](delivery.md#notices-of-events)."},
		"events":                {"", "`published` doubles RabbitMQ's messages."},
		"log-headers":           {"", "List no header with secrets."},
		"metrics-routing-keys":  {"", "See [routing keys](metrics.md#routing-keys)."},
		"metrics-header":        {"at most 255 bytes", "See [headers](metrics.md#headers)."},

		"http-addr":     {"", "`0.0.0.0:9464` in a container. A second relay on one machine needs another port. [Who can see it](security.md#the-http-address)."},
		"statsd-addr":   {"", "The prefix is `cdc_relay` otherwise. See [DogStatsD](metrics.md#dogstatsd)."},
		"liveness-file": {"", "See [health](operations.md#health)."},
		"log-format":    {"", "`NO_COLOR` turns colors off."},
	}
}

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
		"send-timeout":        {"from `100ms`", "After that, a claimed row may be published again."},
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

		"http-addr":     {"", "`run` spells it `--listen`. `0.0.0.0:9464` in a container. A second relay on one machine needs another port. [Who can see it](security.md#the-http-address)."},
		"statsd-addr":   {"", "The prefix is `cdc_relay` otherwise. See [DogStatsD](metrics.md#dogstatsd)."},
		"liveness-file": {"", "See [health](operations.md#health)."},
		"log-format":    {"", "`NO_COLOR` turns colors off."},
	}
}

package main

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/terminal"
)

func resolved(t *testing.T, env environment, args ...string) *config {
	t.Helper()
	p := process{terminal: terminal.New(nil, io.Discard, io.Discard, false), lookupEnv: env.lookup}
	var cfg *config
	command := p.runCommand()
	command.Action = func(c *cli.Context) (err error) {
		cfg, err = p.resolve(c)
		return err
	}
	app := &cli.App{Commands: []*cli.Command{command}, Writer: io.Discard, ErrWriter: io.Discard}
	must(t, app.RunContext(t.Context(), append([]string{"cdc-relay", "run"}, args...)))
	return cfg
}

func readConfig(file string, cfg *config) error {
	reader := (&process{lookupEnv: environment{"CDC_RELAY_CONFIG": file}.lookup}).reader()
	_, err := reader.Read(flags("config"), cfg)
	return err
}

func TestHelpPagesShowTheDefaults(t *testing.T) {
	for _, s := range allSettings() {
		if len(takersOf(s.Name)) == 0 {
			t.Errorf("no command takes --%s", s.Name)
		}
		text := s.Default
		if text == "" {
			continue
		}
		if s.Name == "exchange" {
			text = ""
		}
		cfg := defaultConfig()
		if err := s.Set(cfg, text); err != nil {
			t.Errorf("--%s: %v", s.Name, err)
		}
		if !reflect.DeepEqual(cfg, defaultConfig()) {
			t.Errorf("--%s: the default is not %s", s.Name, text)
		}
	}
}

func TestEmptyVariablesCountIfEmptyIsAValidValue(t *testing.T) {
	cfg := resolved(t, environment{"CDC_RELAY_HTTP_ADDR": "", "CDC_RELAY_MAX_IN_FLIGHT": "", "CDC_RELAY_AMQP_URL": ""})
	if cfg.httpAddr != "" || cfg.relay.MaxInFlight != 2000 {
		t.Errorf("got %q, %d", cfg.httpAddr, cfg.relay.MaxInFlight)
	}
}

func TestTheFileCanSetEverySetting(t *testing.T) {
	text, err := os.ReadFile("testdata/full.yml")
	must(t, err)
	for _, s := range allSettings() {
		inPlace := strings.HasSuffix(s.Name, "-url-file") // it replaces a value of the file
		if !s.NotInFile && !s.FlagOnly && !inPlace && !strings.Contains(string(text), "\n"+s.Name+": ") {
			t.Errorf("testdata/full.yml lacks %s", s.Name)
		}
	}
	cfg := resolved(t, nil, "--config", "testdata/full.yml")
	if err := cfg.validate(); err != nil {
		t.Error(err)
	}
	if cfg.relay.Table.Name != "Out.Box" || cfg.relay.PollInterval != 2*time.Second || cfg.httpAddr != "" || !cfg.selected.exact || cfg.rate != 2.5 {
		t.Errorf("got %+v", cfg)
	}
	for _, line := range []string{"payload: true", "fix: true", "strict: true", "limit: 7"} { // a file must not decide these
		if r := cdcRelay(t, nil, "list", "--config", writeFile(t, "flags.yml", line)); r.code != exitUsage || !strings.Contains(r.stderr, "can only be given as a flag") {
			t.Errorf("%s: got %d, %s", line, r.code, r.stderr)
		}
	}
	for _, nothing := range []string{"", "# only a comment\n", "---\n"} {
		cfg := resolved(t, nil, "--config", writeFile(t, "empty.yml", nothing))
		delete(cfg.given, "config")
		cfg.flags = nil
		if !reflect.DeepEqual(cfg, defaultConfig()) {
			t.Errorf("%q: got %+v", nothing, cfg)
		}
	}
}

func TestHelpPagesAreComplete(t *testing.T) {
	p := process{}
	check := func(path []string, c *cli.Command) {
		for _, args := range [][]string{append(path, "--help"), append(path, "-h")} {
			r := cdcRelay(t, nil, args...)
			wantOutput(t, r, "cdc-relay "+strings.Join(path, " ")+": "+c.Usage, "EXIT CODES", c.UsageText, c.Description)
			for _, f := range c.Flags {
				s, ok := f.(*settings.Flag)
				if ok && s.Advanced && strings.Contains(r.stdout, "which are flags here, too:") {
					ok = !strings.Contains(r.stdout, "--"+s.Name)
				} else if ok {
					ok = !strings.Contains(r.stdout, "--"+s.Name) || strings.Contains(r.stdout, "["+variable(s.Name)+"]") == s.FlagOnly
				}
				if ok {
					t.Errorf("%v: --%s or its variable is missing:\n%s", path, s.Name, r.stdout)
				}
			}
			for i, line := range strings.Split(r.stdout, "\n") {
				if len([]rune(line)) > 100 || strings.TrimRight(line, " ") != line {
					t.Errorf("%v: line %d is long or ends in blanks: %q", path, i+1, line)
				}
			}
			if strings.Contains(r.stdout, "\n\n\n") {
				t.Errorf("%v: two empty lines:\n%s", path, r.stdout)
			}
		}
	}
	for _, command := range p.app().Commands {
		check([]string{command.Name}, command)
		for _, sub := range command.Subcommands {
			check([]string{command.Name, sub.Name}, sub)
		}
	}
	for command, codes := range map[string]string{
		"setup": "0 1 2", "resend": "0 1 2 3", "list": "0 1 2 3", "stats": "0 1 2 10 11", "run": "0 1 2 130 143", "config": "0 1 2",
	} {
		_, page, _ := strings.Cut(cdcRelay(t, nil, command, "--help").stdout, "EXIT CODES")
		if got := strings.Join(regexp.MustCompile(`\b\d+\b`).FindAllString(page, -1), " "); got != codes {
			t.Errorf("%s: the page has exit codes %s, want %s", command, got, codes)
		}
	}
	wantOutput(t, cdcRelay(t, nil, "help"), "FIRST STEPS", "EXIT CODES")
	wantOutput(t, cdcRelay(t, nil, "--help"), cdcRelay(t, nil).stdout, "FIRST STEPS", "EXIT CODES")
	wantOutput(t, cdcRelay(t, nil, "help", "run"), "cdc-relay run: ")
}

func TestConfigShowNamesSources(t *testing.T) {
	folder := t.TempDir()
	file, secret := filepath.Join(folder, "relay.yml"), filepath.Join(folder, "url")
	for name, text := range map[string]string{
		file:   "# ours\nmax-in-flight: 7\nmax-retries: 3\nmanagement-url: http://u:s3cr3t@h:1\ndatabase-url-file: " + secret + "\n",
		secret: "postgres://relay:s3cr3t@127.0.0.1:1/shop?sslpassword=s3cr3t&sslmode=disable\n",
	} {
		must(t, os.WriteFile(name, []byte(text), 0o600))
	}
	env := environment{"CDC_RELAY_CONFIG": file, "CDC_RELAY_MAX_RETRIES": "4", "CDC_RELAY_AMQP_URL": "amqp://u:s3'cr3t@127.0.0.1:1/"}
	r := cdcRelay(t, env, "config", "show", "--json", "--slot", "mine")
	want(t, r, exitDone)
	var view configView
	must(t, json.Unmarshal([]byte(r.stdout), &view))
	got := make(map[string]string)
	for _, s := range view.Settings {
		text := s.Source
		if s.Place != nil {
			text += " " + *s.Place
		}
		if s.Value == nil {
			text += " none"
		} else {
			text += " = " + *s.Value
		}
		got[s.Name] = text
	}
	for name, text := range map[string]string{
		"slot":           "flag --slot = mine",
		"max-retries":    "environment CDC_RELAY_MAX_RETRIES = 4",
		"max-in-flight":  "file " + file + ":2 = 7",
		"management-url": "file " + file + ":4 = http://u:***@h:1",
		"database-url":   "file " + secret + " = postgres://relay:***@127.0.0.1:1/shop?sslpassword=***&sslmode=disable",
		"amqp-url":       "environment CDC_RELAY_AMQP_URL = amqp://u:***@127.0.0.1:1/",
		"exchange":       "default = ",
		"poll-interval":  "default = 1s",
		"liveness-file":  "default none",
		"yes":            "",
	} {
		if got[name] != text {
			t.Errorf("%s: got %q, want %q", name, got[name], text)
		}
	}
	table := cdcRelay(t, env, "config", "show", "--slot", "mine")
	wantOutput(t, table, "SETTING", "max-retries ", " CDC_RELAY_MAX_RETRIES\n", file+":2\n", "exchange ", " ''  ")
	if strings.Contains(r.stdout+r.stderr+table.stdout+table.stderr, "cr3t") {
		t.Errorf("shows a password: %s%s", r.stdout, table.stdout)
	}
	wantOutput(t, cdcRelay(t, env, "config", "validate", "--publication", "p"), "valid\n")
	wantJSON(t, cdcRelay(t, env, "config", "validate", "--json"), exitDone, map[string]any{"valid": true})
}

func TestConfigShowHidesPasswords(t *testing.T) {
	for text, shown := range map[string]string{
		"host=h password='s3 \\' cr3t' user=u":     "host=h password=*** user=u",
		"password = s3cr3t sslpassword=x":          "password = *** sslpassword=***",
		`host=h PASSWORD=s3\ cr3t user=u`:          "host=h PASSWORD=*** user=u",
		"postgres://h/d?passwd=s3cr3t&passfile=/p": "postgres://h/d?passwd=***&passfile=/p",
		"postgres://u@h/d":                         "postgres://u@h/d",
		"postgres://h,i/d?user=u&pass%77ord=x":     "postgres://h,i/d?user=u&pass%77ord=***",
		"postgres://:s3cr3t@h/d":                   "postgres://:***@h/d",
	} {
		if got := withoutPassword("database-url", text); got != shown {
			t.Errorf("%s: got %s, want %s", text, got, shown)
		}
	}
}

func TestConfigValidateNamesAllMistakes(t *testing.T) {
	validate := func(env environment, args ...string) result {
		return cdcRelay(t, env, append([]string{"config", "validate"}, args...)...)
	}
	const noURLs = "set --database-url or CDC_RELAY_DATABASE_URL\nset --amqp-url or CDC_RELAY_AMQP_URL"
	wantUsage(t, validate(nil), noURLs)
	wantUsage(t, validate(environment{"CDC_RELAY_MAX_IN_FLIGHT": "0", "CDC_RELAY_MAX_RETRIES": "-4", "CDC_RELAY_MODE": "x"}),
		`--mode (from CDC_RELAY_MODE): "x": want auto or poll
--max-retries (from CDC_RELAY_MAX_RETRIES): "-4": want 0 to 1000, or unlimited
set --database-url or CDC_RELAY_DATABASE_URL
--max-in-flight 0: want 1 to 100000
set --amqp-url or CDC_RELAY_AMQP_URL`)
	file := writeFile(t, "relay.yml", "slott: a\nmax-in-flight: 0\ndatabase-url-file: /nowhere/a\namqp-url-file: /nowhere/b\n")
	wantUsage(t, validate(nil, "--config", file, "--poll-interval", "0s", "--table", "a.b.c"), file+`:1: unknown key "slott", did you mean "slot"?
--table: table name "a.b.c": want name or schema.name
--database-url-file: open /nowhere/a: no such file or directory
--amqp-url-file: open /nowhere/b: no such file or directory
--max-in-flight 0: want 1 to 100000
--poll-interval 0s: want at least 10ms`)
	wantUsage(t, validate(nil, "--config", "/nowhere/x.yml"), "--config: open /nowhere/x.yml: no such file or directory")
	wantJSON(t, validate(nil, "--json"), exitUsage, map[string]any{"valid": false, "errors": []any{
		"set --database-url or CDC_RELAY_DATABASE_URL", "set --amqp-url or CDC_RELAY_AMQP_URL",
	}})
}

func TestUnknownVariablesAreReported(t *testing.T) {
	env := environment{
		"CDC_RELAY_DATABSE_URL": someDatabase, "CDC_RELAY_XYZZY": "1", "CDC_RELAY_YES": "true", "CDC_RELAY_ALL": "true", "CDC_RELAY_SLOT": "known",
		// Kubernetes sets these for the Services cdc-relay and cdc-relay-metrics.
		"CDC_RELAY_SERVICE_HOST": "10.0.0.1", "CDC_RELAY_SERVICE_PORT_METRICS": "9464", "CDC_RELAY_PORT": "tcp://10.0.0.1:9464",
		"CDC_RELAY_PORT_9464_TCP_ADDR": "10.0.0.1", "CDC_RELAY_METRICS_PORT_9464_TCP": "tcp://10.0.0.1:9464", "CDC_RELAY_METRICS_SERVICE_PORT": "9464",
		"CDC_RELAY_SERVICES": "local", "CDC_RELAYED": "1", "CDC_RELAY_FILTER": "1",
	}
	r := cdcRelay(t, env, "setup", "--tables-only", "--print-sql")
	want(t, r, exitDone)
	const warnings = `cdc-relay: warning: CDC_RELAY_ALL has no effect: --all can only be given as a flag
cdc-relay: warning: CDC_RELAY_DATABSE_URL has no effect: did you mean CDC_RELAY_DATABASE_URL?
cdc-relay: warning: CDC_RELAY_FILTER has no effect: it is no setting; docs/configuration.md lists them
cdc-relay: warning: CDC_RELAY_XYZZY has no effect: it is no setting; docs/configuration.md lists them
cdc-relay: warning: CDC_RELAY_YES has no effect: --yes can only be given as a flag
`
	if r.stderr != warnings {
		t.Errorf("got %s", r.stderr)
	}
	for _, command := range []string{"run", "drain", "console"} { // they write a log
		r := cdcRelay(t, environment{"CDC_RELAY_DATABSE_URL": someDatabase, "CDC_RELAY_LOG_FORMAT": "json"}, command)
		want(t, r, exitUsage)
		if line := logLines(t, r.stderr)["config_warning"]; line["msg"] != "CDC_RELAY_DATABSE_URL has no effect" ||
			line["level"] != "WARN" || line["hint"] != "did you mean CDC_RELAY_DATABASE_URL?" || strings.Contains(r.stderr, "warning:") {
			t.Errorf("%s: %s", command, r.stderr)
		}
	}
}

// The environment cannot delete anything or skip a question. Only flags can.
func TestVariablesCannotSkipAQuestion(t *testing.T) {
	env, conn := withTables(t, "--mode", "poll")
	execute(t, conn, insertDead, 1, uuid(1), nil)
	env["CDC_RELAY_YES"], env["CDC_RELAY_TABLES"] = "true", "true"
	wantError(t, cdcRelay(t, env, "delete", "--state", "dead", "--all"), "not confirmed: nothing was deleted")
	env["CDC_RELAY_DRY_RUN"] = "true"
	wantOutput(t, cdcRelay(t, env, "delete", "--state", "dead", "--all", "--yes"), "deleted 1 dead letter")
}

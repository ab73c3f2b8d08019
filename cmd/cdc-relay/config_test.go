package main

import (
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/terminal"
)

// resolved returns the configuration of "run" with these arguments.
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

// readConfig reads a configuration file into cfg.
func readConfig(file string, cfg *config) error {
	reader := (&process{lookupEnv: environment{"CDC_RELAY_CONFIG": file}.lookup}).reader()
	_, err := reader.Read(flags("config"), cfg)
	return err
}

func TestHelpPagesShowTheDefaults(t *testing.T) {
	for _, s := range allSettings() {
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
	if cfg.relay.Table.Name != "Out.Box" || cfg.relay.PollInterval != 2*time.Second || cfg.httpAddr != "" || !cfg.checking.strict || cfg.rate != 2.5 {
		t.Errorf("got %+v", cfg)
	}
	for _, nothing := range []string{"", "# only a comment\n", "---\n"} {
		file := filepath.Join(t.TempDir(), "empty.yml")
		must(t, os.WriteFile(file, []byte(nothing), 0o600))
		cfg := resolved(t, nil, "--config", file)
		delete(cfg.given, "config")
		cfg.flags = nil
		if !reflect.DeepEqual(cfg, defaultConfig()) {
			t.Errorf("%q: got %+v", nothing, cfg)
		}
	}
}

func TestEverySettingHasAFlagAndAVariable(t *testing.T) {
	seen := make(map[string]bool)
	p := process{}
	for _, command := range p.app().Commands {
		for _, c := range append(command.Subcommands, command) {
			for _, f := range c.Flags {
				if s, ok := f.(*settings.Flag); ok {
					seen[s.Name] = true
				}
			}
		}
	}
	for _, s := range allSettings() {
		if !seen[s.Name] {
			t.Errorf("no command takes --%s", s.Name)
		}
	}
	if got := variable("max-in-flight"); got != "CDC_RELAY_MAX_IN_FLIGHT" {
		t.Errorf("got %s", got)
	}
}

func TestHelpPagesAreComplete(t *testing.T) {
	p := process{}
	check := func(path []string, c *cli.Command) {
		for _, args := range [][]string{append(path, "--help"), append(path, "-h")} {
			r := cdcRelay(t, nil, args...)
			wantOutput(t, r, "cdc-relay "+strings.Join(path, " ")+": "+c.Usage, "EXIT CODES", c.UsageText, c.Description)
			for _, f := range c.Flags {
				if s, ok := f.(*settings.Flag); ok && (!strings.Contains(r.stdout, "--"+s.Shown()) || strings.Contains(r.stdout, "["+variable(s.Name)+"]") == s.FlagOnly) {
					t.Errorf("%v: --%s or its variable is missing:\n%s", path, s.Shown(), r.stdout)
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
	wantOutput(t, cdcRelay(t, nil, "help"), "FIRST STEPS", "EXIT CODES")
	wantOutput(t, cdcRelay(t, nil, "--help"), "FIRST STEPS", "EXIT CODES")
	wantOutput(t, cdcRelay(t, nil, "help", "run"), "cdc-relay run: ")
	wantOutput(t, cdcRelay(t, nil, "version"), "cdc-relay ", "\ncommit ", "\ndate ", "\ngo1.")
}

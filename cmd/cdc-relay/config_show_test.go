package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestConfigShowNamesSources(t *testing.T) {
	folder := t.TempDir()
	file, secret := filepath.Join(folder, "relay.yml"), filepath.Join(folder, "url")
	for name, text := range map[string]string{
		file:   "# ours\nmax-in-flight: 7\nmax-retries: 3\napp-role: shop\nmanagement-url: http://u:s3cr3t@h:1\ndatabase-url-file: " + secret + "\n",
		secret: "postgres://relay:s3cr3t@127.0.0.1:1/shop?sslpassword=s3cr3t&sslmode=disable\n",
	} {
		must(t, os.WriteFile(name, []byte(text), 0o600))
	}
	env := environment{"CDC_RELAY_CONFIG": file, "CDC_RELAY_MAX_RETRIES": "4", "CDC_RELAY_FAILOVER_SLOT": "true", "CDC_RELAY_AMQP_URL": "amqp://u:s3'cr3t@127.0.0.1:1/"}
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
		"config":         "environment CDC_RELAY_CONFIG = " + file,
		"slot":           "flag --slot = mine",
		"max-retries":    "environment CDC_RELAY_MAX_RETRIES = 4",
		"max-in-flight":  "file " + file + ":2 = 7",
		"app-role":       "file " + file + ":4 = shop",
		"management-url": "file " + file + ":5 = http://u:***@h:1",
		"database-url":   "file " + secret + " = postgres://relay:***@127.0.0.1:1/shop?sslpassword=***&sslmode=disable",
		"amqp-url":       "environment CDC_RELAY_AMQP_URL = amqp://u:***@127.0.0.1:1/",
		"failover-slot":  "environment CDC_RELAY_FAILOVER_SLOT = true",
		"exchange":       "default = ",
		"poll-interval":  "default = 1s",
		"liveness-file":  "default none",
		"yes":            "",
		"rate":           "",
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
	wantUsage(t, validate(environment{"CDC_RELAY_STALE_TIMEOUT": "9s"}), "CDC_RELAY_STALE_TIMEOUT was removed: its value is always 5s\n"+noURLs)
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

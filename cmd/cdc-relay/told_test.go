package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// A command that asks the running relay gets all settings of the relay from it that it has as flags.
func TestCommandsNeedNoSettingOfARunningRelay(t *testing.T) {
	p := process{}
	ofRun := make(map[string]bool)
	for _, f := range settings.FlagsOf(p.runCommand().Flags) {
		ofRun[f.Name] = true
	}
	connections := []string{
		"database-url", "database-url-file", "amqp-url", "amqp-url-file",
		"config", "table", relayAddress, "log-level", "log-format",
		"owner", // a relay must not tell a user whom to trust
	}
	for _, path := range []string{"stats", "explain", "keys", "list", "resend", "delete", "console"} {
		own := settings.FlagsOf(p.app().Command(path).Flags)
		if !slices.ContainsFunc(own, func(f *settings.Flag) bool { return f.Name == relayAddress }) {
			t.Errorf("%s asks no relay", path)
		}
		for _, f := range own {
			if ofRun[f.Name] && !f.FlagOnly && !f.Shared && !slices.Contains(connections, f.Name) {
				t.Errorf("%s needs --%s, and the relay does not tell it", path, f.Name)
			}
			if f.Advanced != f.Shared {
				t.Errorf("%s: --%s is in the wrong part of the help page", path, f.Name)
			}
		}
	}
}

// lookingAt returns the environment of a command that knows only the database and where a relay is.
func lookingAt(env environment, relay string) environment {
	return environment{
		"CDC_RELAY_DATABASE_URL": env["CDC_RELAY_DATABASE_URL"],
		"CDC_RELAY_HTTP_ADDR":    strings.TrimPrefix(relay, "http://"),
	}
}

func TestCommandsTakeTheSettingsOfTheRunningRelay(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"auto", "poll"} {
		t.Run(mode, func(t *testing.T) {
			env, db := fresh(t)
			env["CDC_RELAY_AMQP_URL"] = services.VHost(t)
			env["CDC_RELAY_MODE"] = mode
			want(t, cdcRelay(t, env, "setup"), exitDone)
			execute(t, db, `ALTER TABLE outbox ADD COLUMN tenant text; ALTER TABLE outbox_dead_letter ADD COLUMN tenant text`)
			execute(t, db, `INSERT INTO outbox (id, routing_key, payload, ordering_key, tenant, available_at)
				OVERRIDING SYSTEM VALUE VALUES
				(1, 'orders', '1', NULL, 'acme', now() + interval '30 min'), (2, 'orders', '1', 'c7', NULL, now() + interval '1 day')`)
			execute(t, db, `INSERT INTO outbox_dead_letter (id, message_id, created_at, attempts, schema_version, routing_key, payload,
				failure_reason, ordering_key) VALUES (-1, gen_random_uuid(), now(), 6, 1, 'orders', '1', 'nack', 'c7')`)
			run := start(t, env, "run", "--max-retries", "9", "--on-dead-letter", "block", "--exchange", "shop",
				"--header-columns", "tenant", "--ordering-key-header", "key", "--poll-interval", "3s")
			relay := run.httpURL(t)
			await.Until(t, "the relay is ready", func() bool { return strings.HasPrefix(page(t, relay+"/readyz"), "200") })
			execute(t, db, `UPDATE outbox SET attempts = 2, last_error = 'nack: no' WHERE id = 1`)
			looking := lookingAt(env, relay)
			quiet := func(wanted string, args ...string) {
				t.Helper()
				r := cdcRelay(t, looking, args...)
				wantOutput(t, r, wanted)
				if r.stderr != "" {
					t.Errorf("%v: got %s", args, r.stderr)
				}
			}
			quiet("again up to 7 times, then it is a dead letter\n", "explain", "1")
			quiet("nothing until the dead letter of its key", "explain", "2")
			quiet("until the dead letter of its key", "keys", "--blocked")
			execute(t, db, `INSERT INTO outbox (id, routing_key, payload, ordering_key, available_at) OVERRIDING SYSTEM VALUE
				VALUES (-3, 'orders', '1', 'c7', NULL)`)
			quiet(`"id": -3`, "list", "--state", "blocked", "--json")
			if mode == "auto" {
				quiet("slot "+env["CDC_RELAY_SLOT"], "stats")
				quiet(`"owned": true`, "stats", "--json")
			} else if r := cdcRelay(t, looking, "stats"); strings.Contains(r.stdout, "no relay streams") {
				t.Errorf("stats misses a stream in poll mode: %s", r.stdout)
			}

			// A console has them, too.
			console := lookingAt(env, relay)
			_, at := startConsole(t, console)
			_, body := fetch(t, http.MethodGet, at+"/message?id=1", nil)
			if !strings.Contains(body, "again up to 7 times") {
				t.Errorf("the console shows %s", body)
			}

			// What the user gives counts, and a difference is noted.
			r := cdcRelay(t, looking, "explain", "1", "--max-retries", "3", "--on-dead-letter", "block")
			wantOutput(t, r, "again up to 1 times")
			if r.stderr != "note: this command uses --max-retries 3, not the relay's 9\n" {
				t.Errorf("got %q", r.stderr)
			}
			looking["CDC_RELAY_POLL_INTERVAL"] = "3000ms" // it is the same
			looking["CDC_RELAY_CONFIG"] = writeFile(t, "relay.yaml", "exchange: other\n")
			quiet("again up to 7 times", "explain", "1") // it needs no exchange
			delete(looking, "CDC_RELAY_CONFIG")

			// No relay answers.
			run.stopsWell(t)
			address := looking["CDC_RELAY_HTTP_ADDR"]
			quiet("again up to 3 times, then it is a dead letter (the default of --max-retries: no relay answered at "+address+")",
				"explain", "1")
			quiet("again up to 3 times, then it is a dead letter\n", "explain", "1", "--max-retries", "5")
		})
	}
}

func TestTheRelayTellsNoSecret(t *testing.T) {
	env, _ := withTables(t, "--mode", "poll")
	address := env["CDC_RELAY_DATABASE_URL"]
	env["CDC_RELAY_DATABASE_URL"] = "" // the tests may have been given one
	separator := "?"
	if strings.Contains(address, "?") {
		separator = "&"
	}
	handler := writeFile(t, "s3cr3t-handler", "#!/bin/sh\nexec cat >/dev/null\n")
	must(t, os.Chmod(handler, 0o755))
	env["CDC_RELAY_DATABASE_URL_FILE"] = writeFile(t, "s3cr3t-file", address+separator+"application_name=s3cr3t&sslpassword=s3cr3t")
	env["CDC_RELAY_AMQP_URL"] = "amqp://s3cr3t:s3cr3t@127.0.0.1:1/s3cr3t"
	env["CDC_RELAY_STATSD_ADDR"], env["CDC_RELAY_LIVENESS_FILE"] = "127.0.0.1:1?tags=s3cr3t:s3cr3t", writeFile(t, "s3cr3t-live", "")
	env["CDC_RELAY_LOG_HEADERS"] = "s3cr3t"
	run := start(t, env, "run", "--mode", "poll", "--publisher", "exec", "--", handler, "--token", "s3cr3t")
	answer := page(t, run.httpURL(t)+"/settings")
	if strings.Contains(answer, "s3cr3t") || !strings.Contains(answer, `"max-retries":"5"`) {
		t.Errorf("got %s", answer)
	}
	var told map[string]any
	must(t, json.Unmarshal([]byte(strings.TrimPrefix(answer, "200 ")), &told))
	database, _ := told["database"].(map[string]any)
	if told["table"] != "public.outbox" || told["instance"] == "" || database["name"] == "" || database["system"] == "" {
		t.Errorf("got %v", told)
	}
}

// relayLike answers like a relay of this build, except for its settings.
func relayLike(t *testing.T, answer http.HandlerFunc) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ready (streaming)\n") })
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "# TYPE cdc_relay_build_info gauge\ncdc_relay_build_info{version=\"1\"} 1\n")
	})
	mux.HandleFunc("/settings", answer)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	return server
}

func TestCommandsNoticeARelayThatIsNotTheirs(t *testing.T) {
	t.Parallel()
	env, db := withTables(t, "--mode", "poll")
	execute(t, db, `INSERT INTO outbox (id, routing_key, payload, attempts, available_at) OVERRIDING SYSTEM VALUE
		VALUES (1, 'k', '1', 1, now() + interval '1 day')`)
	name := query[string](t, db, "SELECT current_database()::text")
	system := query[string](t, db, "SELECT system_identifier::text FROM pg_control_system()")
	tell := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, text) }
	}
	about := func(table, name, system, settings string) http.HandlerFunc {
		return tell(fmt.Sprintf(`{"version":"9","table":"%s","database":{"name":"%s","system":"%s"},"settings":%s}`,
			table, name, system, settings))
	}
	mine := func(settings string) http.HandlerFunc { return about("public.outbox", name, system, settings) }
	elsewhere := httptest.NewServer(mine(`{"max-retries":"8"}`))
	defer elsewhere.Close()
	for _, test := range []struct {
		name    string
		command string // explain 1, if it is ""
		answer  http.HandlerFunc
		tries   string // what explain says
		stderr  string // ADDRESS is that of the relay
	}{
		{name: "mine", answer: mine(`{"max-retries":"8"}`), tries: "up to 7 times, then it is a dead letter\n"},
		{name: "server unknown", answer: about("public.outbox", name, "", `{"max-retries":"8"}`), tries: "up to 7 times, then"},
		{name: "database unknown", answer: about("public.outbox", "", "", `{"max-retries":"8"}`), tries: "up to 7 times, then"},
		{
			name: "another table", answer: about("billing.outbox", name, system, `{"max-retries":"8"}`), tries: "no relay of this table answered",
			stderr: "note: the relay at ADDRESS publishes billing.outbox: --http-addr should be the address of a relay of public.outbox\n",
		},
		{
			name: "another database", answer: about("public.outbox", `billing\u001b[2J`, system, `{"max-retries":"8"}`),
			tries:  "no relay of this table answered",
			stderr: `note: the relay at ADDRESS publishes public.outbox of database billing\x1b[2J: --http-addr should`,
		},
		{
			name: "another server", answer: about("public.outbox", name, "1", `{"max-retries":"8"}`), tries: "no relay of this table answered",
			stderr: "note: the relay at ADDRESS publishes public.outbox of another Postgres server: ",
		},
		{name: "an older relay", answer: http.NotFound, tries: "the relay at ADDRESS is too old to tell its settings"},
		{name: "not JSON", answer: tell("<html>"), tries: "in an unknown form"},
		{name: "other JSON", answer: tell(`{"theme":"dark"}`), tries: "in an unknown form"},
		{name: "an array", answer: tell(`[1]`), tries: "in an unknown form"},
		{name: "a table that is a number", answer: tell(`{"table":1}`), tries: "in an unknown form"},
		{name: "an error", answer: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, tries: "in an unknown form"},
		{
			name: "a redirect", answer: http.RedirectHandler(elsewhere.URL, http.StatusFound).ServeHTTP,
			tries: "in an unknown form",
		},
		{
			name: "without an end", tries: "in an unknown form",
			answer: func(w http.ResponseWriter, _ *http.Request) {
				for {
					if _, err := io.WriteString(w, strings.Repeat(" ", 1<<16)); err != nil {
						return
					}
				}
			},
		},
		{
			name: "without a begin", tries: "does not tell its settings: context deadline exceeded",
			answer: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		},
		{
			name:   "wrong values",
			answer: mine(`{"max-retries":8,"slot":"\u001b[2J","poll-interval":null,"on-dead-letter":["block"],"yes":"true","shards":"9","table":"t"}`),
			tries:  "up to 4 times, then it is a dead letter",
			stderr: "note: this command ignores settings of the relay: --slot \\x1b[2J\n",
		},
		{
			name: "values of a newer relay", tries: "up to 4 times, then it is a dead letter\n",
			answer: mine(`{"max-retries":"999999999999999999999999","on-dead-letter":"pause","poll-interval":"1ns","shard":"9/4"}`),
			stderr: "note: this command ignores settings of the relay: --shard 9/4, --poll-interval 1ns, " +
				"--max-retries 999999999999999999999999, --on-dead-letter pause\n",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			address := strings.TrimPrefix(relayLike(t, test.answer).URL, "http://")
			fill := func(text string) string { return strings.ReplaceAll(text, "ADDRESS", address) }
			command := strings.Fields("explain 1")
			r := cdcRelay(t, lookingAt(env, address), command...)
			wantOutput(t, r, fill(test.tries))
			if !strings.HasPrefix(r.stderr, fill(test.stderr)) || (r.stderr != "") != (test.stderr != "") {
				t.Errorf("got %q, want %q", r.stderr, fill(test.stderr))
			}
		})
	}
	other := strings.TrimPrefix(relayLike(t, about("billing.outbox", name, system, "{}")).URL, "http://")
	r := cdcRelay(t, lookingAt(env, other), "stats")
	wantOutput(t, r, "is another one: it publishes billing.outbox")
	if strings.Contains(r.stdout, "throughput") {
		t.Errorf("stats shows the numbers of another relay: %s", r.stdout)
	}
}

// The settings of a relay are known after its end, and a note comes once.
func TestAWatchingCommandKeepsTheSettingsOfARelayThatEnded(t *testing.T) {
	env, _ := withTables(t, "--mode", "poll")
	cfg := defaultConfig()
	cfg.relay.DatabaseURL = env["CDC_RELAY_DATABASE_URL"]
	cfg.flags = []string{"max-retries", "mode"}
	cfg.given["mode"] = settings.Value{Text: "auto"}
	table := "public.outbox"
	relay := relayLike(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"table":%q,"settings":{"max-retries":"8","mode":"poll"}}`, table)
	})
	s, err := (&process{}).openSession(t.Context(), cfg, "test")
	must(t, err)
	defer s.Close(t.Context())
	var notes []string
	source := show.NewSource(strings.TrimPrefix(relay.URL, "http://"), cfg, func(note string) { notes = append(notes, note) })
	if n := source.Known().MaxRetries; n != 5 {
		t.Errorf("got %d retries before the first answer", n)
	}
	for range 2 {
		if _, known, err := source.Ask(t.Context(), s.Tables); err != nil || known.MaxRetries != 8 || known.Mode != "auto" {
			t.Errorf("got %d, %s, %v", known.MaxRetries, known.Mode, err)
		}
	}
	if !slices.Equal(notes, []string{"this command uses --mode auto, not the relay's poll"}) {
		t.Errorf("got %q", notes)
	}
	table = "billing.outbox"
	if _, known, err := source.Ask(t.Context(), s.Tables); err == nil || known.MaxRetries != 5 || len(notes) != 2 {
		t.Errorf("another relay: got %d, %v, %q", known.MaxRetries, err, notes)
	}
	table = "public.outbox"
	if _, _, err := source.Ask(t.Context(), s.Tables); err != nil {
		t.Error(err)
	}
	relay.Close()
	if _, known, err := source.Ask(t.Context(), s.Tables); err == nil || known.MaxRetries != 8 || known.Missing != "" {
		t.Errorf("after its end: got %d, %q, %v", known.MaxRetries, known.Missing, err)
	}
}

func TestARelayWithoutPostgresTellsItsSettings(t *testing.T) {
	run := start(t, environment{
		"CDC_RELAY_DATABASE_URL": "postgres://127.0.0.1:1/shop", "CDC_RELAY_HTTP_ADDR": "127.0.0.1:0",
	}, "run", "--publisher", "stdout", "--max-retries", "unlimited")
	answer := page(t, run.httpURL(t)+"/settings")
	for _, part := range []string{`"max-retries":"unlimited"`, `"database":{"system":"","name":""}`} {
		if !strings.Contains(answer, part) {
			t.Errorf("got %s", answer)
		}
	}
}

// check judges what it gets, and says how the running relay differs: --fix must not act on the word of a port.
func TestCheckNotesHowTheRunningRelayDiffers(t *testing.T) {
	env, _ := fresh(t)
	env["CDC_RELAY_MODE"], env["CDC_RELAY_PUBLISHER"] = "poll", "stdout"
	want(t, cdcRelay(t, env, "setup"), exitDone)
	relay := start(t, env, "run").httpURL(t)
	env["CDC_RELAY_HTTP_ADDR"] = strings.TrimPrefix(relay, "http://")
	if r := cdcRelay(t, env, "check"); r.stderr != "" {
		t.Errorf("got %q", r.stderr)
	}
	r := cdcRelay(t, lookingAt(env, relay), "check", "--publisher", "stdout")
	wanted := fmt.Sprintf("note: this command uses --slot cdc_relay, not the relay's %[1]s, "+
		"--publication cdc_relay, not the relay's %[1]s, --mode auto, not the relay's poll\n", env["CDC_RELAY_SLOT"])
	if !strings.HasPrefix(r.stderr, wanted) {
		t.Errorf("got  %q\nwant %q", r.stderr, wanted)
	}
}

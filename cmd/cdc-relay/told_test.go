package main

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// A command gets all settings that the running relays share and that it has as flags from them.
func TestCommandsNeedNoSettingOfARunningRelay(t *testing.T) {
	p := process{}
	ofRun := make(map[string]bool)
	for _, f := range settings.FlagsOf(p.runCommand().Flags) {
		ofRun[f.Name] = true
	}
	connections := []string{
		"database-url", "database-url-file", "amqp-url", "amqp-url-file",
		"config", "table", "log-level", "log-format",
		"owner", // a relay must not tell a user whom to trust
	}
	for _, path := range []string{"stats", "explain", "keys", "list", "resend", "delete", "console"} {
		own := settings.FlagsOf(p.app().Command(path).Flags)
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

// lookingAt returns the environment of a command that knows only the database.
func lookingAt(env environment) environment {
	return environment{"CDC_RELAY_DATABASE_URL": env["CDC_RELAY_DATABASE_URL"]}
}

// awaitTold waits until so many relays have told what they do, and are ready.
func awaitTold(t *testing.T, db *pgx.Conn, relays int) {
	t.Helper()
	await.Until(t, "the relays tell what they do", func() bool {
		return query[int](t, db, `SELECT count(*) FROM outbox_relay WHERE (state->>'ready')::boolean`) == relays
	})
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
			awaitTold(t, db, 1)
			execute(t, db, `UPDATE outbox SET attempts = 2, last_error = 'nack: no' WHERE id = 1`)
			looking := lookingAt(env)
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
			_, at := startConsole(t, lookingAt(env))
			wantPage(t, at+"/message?id=1", http.StatusOK, "again up to 7 times")
			wantPage(t, at+"/waiting?state=blocked", http.StatusOK, `href="/message?id=-3"`) // behind the dead letter

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

			// No relay runs.
			run.stopsWell(t)
			quiet("again up to 3 times, then it is a dead letter (the default of --max-retries: no relay tells its own)", "explain", "1")
			quiet("again up to 3 times, then it is a dead letter\n", "explain", "1", "--max-retries", "5")
		})
	}
}

func TestTheRelayTellsNoSecret(t *testing.T) {
	env, db := withTables(t, "--mode", "poll")
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
	start(t, env, "run", "--mode", "poll", "--publisher", "exec", "--", handler, "--token", "s3cr3t")
	awaitTold(t, db, 1)
	told := query[string](t, db, `SELECT r::text FROM outbox_relay r`)
	if strings.Contains(told, "s3cr3t") || !strings.Contains(told, `""max-retries"":""5""`) {
		t.Errorf("got %s", told)
	}
}

func TestCommandsBearWhatOtherRelaysTell(t *testing.T) {
	t.Parallel()
	env, db := withTables(t, "--mode", "poll")
	execute(t, db, `INSERT INTO outbox (id, routing_key, payload, attempts, available_at) OVERRIDING SYSTEM VALUE
		VALUES (1, 'k', '1', 1, now() + interval '1 day')`)
	for _, test := range []struct{ name, settings, state, tries, stderr string }{
		{name: "a relay", settings: `{"max-retries":"8"}`, state: `{"role":"streaming"}`, tries: "up to 7 times, then it is a dead letter\n"},
		{
			name: "wrong values", tries: "up to 4 times, then it is a dead letter", state: `[1]`,
			settings: `{"max-retries":8,"slot":"\u001b[2J","poll-interval":null,"on-dead-letter":["block"],"yes":"true","shards":"9","table":"t"}`,
			stderr:   "note: this command ignores settings of the relay: --slot \\x1b[2J, --poll-interval '', --max-retries '', --on-dead-letter ''\n",
		},
		{
			name: "values of a newer relay", tries: "up to 4 times, then it is a dead letter\n", state: `{"parts":7}`,
			settings: `{"max-retries":"999999999999999999999999","on-dead-letter":"pause","poll-interval":"1ns","shard":"9/4"}`,
			stderr: "note: this command ignores settings of the relay: --shard 9/4, --poll-interval 1ns, " +
				"--max-retries 999999999999999999999999, --on-dead-letter pause\n",
		},
		{name: "an array", settings: `[1]`, state: `{}`, tries: "up to 4 times, then"},
	} {
		t.Run(test.name, func(t *testing.T) {
			execute(t, db, `DELETE FROM outbox_relay`)
			execute(t, db, `INSERT INTO outbox_relay (id, seen, pid, host, version, role, settings, state)
				VALUES ('a', now() + interval '1 hour', 7, E'\033[2J', 'v', 'streaming', $1, $2)`, test.settings, test.state)
			r := cdcRelay(t, lookingAt(env), "explain", "1")
			wantOutput(t, r, test.tries)
			if r.stderr != test.stderr {
				t.Errorf("got %q, want %q", r.stderr, test.stderr)
			}
			execute(t, db, `INSERT INTO outbox_relay (id, pid, host, version, role, settings, state)
				VALUES ('b', 8, 'h', 'v', 'standby', '{"\u001b[2Jfuture":"1"}', '{}')`)
			wantOutput(t, cdcRelay(t, lookingAt(env), "stats"), `relay 7 on host \x1b[2J`, `differ in --\x1b[2Jfuture: `)
		})
	}
}

// Two relays with different settings, one that was killed, and a role that may not look.
func TestEveryViewComparesTheRelays(t *testing.T) {
	t.Parallel()
	env, db := withTables(t, "--mode", "poll")
	env["CDC_RELAY_MODE"], env["CDC_RELAY_PUBLISHER"] = "poll", "stdout"
	first := start(t, env, "run", "--exchange", "shop")
	awaitTold(t, db, 1)
	start(t, env, "run", "--exchange", "billing", "--poll-interval", "1000ms")
	awaitTold(t, db, 2)
	const differ = "the relays differ in --exchange: relay "
	wantOutput(t, cdcRelay(t, lookingAt(env), "stats"), "Needs attention: "+differ, " has shop, relay ", " has billing\n", "standby")
	if r := cdcRelay(t, env, "check", "--exchange", "shop"); !strings.Contains(r.stdout, differ) || strings.Contains(r.stdout, "poll-interval") {
		t.Errorf("got %s", r.stdout)
	}
	must(t, first.Process.Kill())
	await.Until(t, "the other one leads", func() bool {
		return query[int](t, db, `SELECT count(*) FROM outbox_relay WHERE role = 'polling' AND (state->>'ready')::boolean`) == 2
	})
	execute(t, db, `UPDATE outbox_relay SET seen = now() - interval '40 s' WHERE pid = $1`, first.Process.Pid)
	wantOutput(t, cdcRelay(t, lookingAt(env), "stats"), fmt.Sprintf("Needs attention: relay %d on host ", first.Process.Pid), " was last seen ")
	wantOutput(t, cdcRelay(t, env, "check", "--all", "--exchange", "shop"), " was last seen ", "1 relay runs, with the same version and settings")

	role := newRole(t, db, "", "LOGIN")
	execute(t, db, "GRANT SELECT ON outbox, outbox_dead_letter, outbox_migrations, outbox_id_seq TO "+role)
	r := cdcRelay(t, lookingAt(asRole(t, env, db, role)), "stats")
	want(t, r, exitDone)
	wantTexts(t, r.stderr, "note: what the relays do is unknown: ", `GRANT SELECT ON "public"."outbox_relay" TO `)
}

// A relay without the grant works, and no view says that there is none.
func TestARelayThatMayNotTellIsNamed(t *testing.T) {
	t.Parallel()
	env, db := withTables(t, "--mode", "poll")
	env["CDC_RELAY_MODE"], env["CDC_RELAY_PUBLISHER"] = "poll", "stdout"
	role := newRole(t, db, "", "LOGIN")
	want(t, cdcRelay(t, env, "setup", "--relay-role", role), exitDone)
	execute(t, db, "REVOKE ALL ON outbox_relay FROM "+role)
	execute(t, db, "INSERT INTO outbox (routing_key, payload, available_at) VALUES ('k', '1', now() + interval '1 day')")
	start(t, asRole(t, env, db, role), "run")
	await.Until(t, "the relay leads", func() bool {
		return query[bool](t, db, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE usename = $1 AND application_name = 'cdc-relay leader')", role)
	})
	grant := fmt.Sprintf(`GRANT SELECT, INSERT, UPDATE, DELETE ON "public"."outbox_relay" TO %q;`, role)
	r := cdcRelay(t, lookingAt(env), "stats")
	wantOutput(t, r, fmt.Sprintf("Needs attention: a relay of role %q runs, and may not tell what it does", role), grant)
	r = cdcRelay(t, env, "check")
	wantOutput(t, r, "warning  relays", fmt.Sprintf("a relay of role %q runs, and may not write to table public.outbox_relay", role), grant)
}

// Two relays of one outbox with different brokers. Neither a user nor a password is told.
func TestRelaysWithDifferentBrokersAreNamed(t *testing.T) {
	t.Parallel()
	env, db := withTables(t, "--mode", "poll")
	env["CDC_RELAY_MODE"] = "poll"
	for i, vhost := range []string{"shop", "billing"} {
		start(t, env, "run", "--amqp-url", "amqp://me:s3cr3t@127.0.0.1:1/"+vhost)
		await.Until(t, "the relay tells its settings", func() bool {
			return query[int](t, db, "SELECT count(*) FROM outbox_relay WHERE NOT settings::text ~ 'me:|me@|s3cr3t'") == i+1
		})
	}
	r := cdcRelay(t, env, "check", "--publisher", "stdout")
	wantTexts(t, r.stdout, "the relays differ in --amqp-url: relay ", " has 127.0.0.1:1/shop", " has 127.0.0.1:1/billing")
}

// check judges what it gets, and says how the running relay differs: --fix must not act on the word of a relay.
func TestCheckNotesHowTheRunningRelayDiffers(t *testing.T) {
	env, db := fresh(t)
	env["CDC_RELAY_MODE"], env["CDC_RELAY_PUBLISHER"] = "poll", "stdout"
	want(t, cdcRelay(t, env, "setup"), exitDone)
	start(t, env, "run")
	awaitTold(t, db, 1)
	if r := cdcRelay(t, env, "check"); r.stderr != "" {
		t.Errorf("got %q", r.stderr)
	}
	r := cdcRelay(t, lookingAt(env), "check", "--publisher", "stdout")
	wanted := fmt.Sprintf("note: this command uses --slot cdc_relay, not the relay's %[1]s, "+
		"--publication cdc_relay, not the relay's %[1]s, --mode auto, not the relay's poll\n", env["CDC_RELAY_SLOT"])
	if !strings.HasPrefix(r.stderr, wanted) {
		t.Errorf("got  %q\nwant %q", r.stderr, wanted)
	}
}

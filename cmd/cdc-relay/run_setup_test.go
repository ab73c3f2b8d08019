package main

import (
	"encoding/json"
	"maps"
	"net/url"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// Relays that start together on an empty database create everything once, and all are ready.
func TestRelaysSetUpAnEmptyDatabaseTogether(t *testing.T) {
	t.Parallel()
	env, conn := fresh(t)
	maps.Copy(env, environment{"CDC_RELAY_SETUP": "true", "CDC_RELAY_KEEP_PUBLISHED": "24h", "CDC_RELAY_PUBLISHER": "stdout"})
	var relays []*command
	for range 3 {
		relays = append(relays, start(t, env, "run", "--log-format", "json"))
	}
	for _, relay := range relays {
		address := relay.httpURL(t)
		await.Until(t, "the relay is ready", func() bool { return strings.HasPrefix(page(t, address+"/readyz"), "200 ready") })
	}
	execute(t, conn, "INSERT INTO outbox (routing_key, payload) VALUES ('r', '1')")
	await.Until(t, "a relay publishes the message", func() bool {
		return query[int](t, conn, "SELECT count(*) FROM outbox_published") == 1 && query[int](t, conn, "SELECT count(*) FROM outbox") == 0
	})
	for _, relay := range relays {
		relay.stopsWell(t)
	}
}

// A relay without the privileges creates nothing, and prints the one command for whoever has them.
func TestRunSetupSaysWhoMustSetUp(t *testing.T) {
	t.Parallel()
	env, conn := fresh(t)
	execute(t, conn, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
	role := newRole(t, conn, " x", "LOGIN")
	login := asRole(t, env, conn, role)
	run := []string{"run", "--setup", "--publisher", "stdout", "--log-format", "json", "--keep-published", "24h"}
	hint := func() string {
		t.Helper()
		r := cdcRelay(t, login, run...)
		want(t, r, exitFailed)
		var last struct{ Error, Hint string }
		lines := strings.Split(strings.TrimSpace(r.stderr), "\n")
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil {
			t.Fatalf("%v: %s", err, r.stderr)
		}
		if !strings.Contains(last.Error, "--setup: role \""+role+"\" lacks privileges to create what is missing: ") {
			t.Errorf("got %s", last.Error)
		}
		if query[bool](t, conn, "SELECT to_regclass('outbox') IS NOT NULL OR EXISTS (SELECT FROM pg_publication)") {
			t.Error("something was created")
		}
		return last.Hint
	}
	const end = "  # OWNER: a superuser, or the owner of the database"
	name := env["CDC_RELAY_SLOT"]
	wanted := " --relay-role '" + role + "' --slot " + name + " --publication " + name + " --keep-published 24h" + end
	for _, grant := range []string{
		"", "ALTER ROLE \"" + role + "\" REPLICATION",
		`DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO "` + role + `"', current_database()); END $$`,
	} {
		execute(t, conn, grant)
		if got := hint(); !strings.HasPrefix(got, "cdc-relay setup --database-url postgres://OWNER@127.0.0.1:") || !strings.HasSuffix(got, wanted) {
			t.Fatalf("after %q: got %s\nwant %s", grant, got, wanted)
		}
	}

	words := strings.Fields(strings.TrimSuffix(strings.ReplaceAll(hint(), "'"+role+"'", "ROLE"), end))[1:]
	for i, word := range words {
		switch {
		case word == "ROLE":
			words[i] = role
		case strings.HasPrefix(word, "postgres://OWNER@"):
			owner, err := url.Parse(env["CDC_RELAY_DATABASE_URL"])
			must(t, err)
			words[i] = strings.Replace(word, "OWNER", owner.User.String(), 1)
		}
	}
	want(t, cdcRelay(t, environment{}, words...), exitDone)
	relay := start(t, login, run...)
	relay.await(t, `"event":"streaming"`)
	relay.stopsWell(t)
}

// A container often starts before its database.
func TestRunSetupWaitsForPostgres(t *testing.T) {
	env, conn := fresh(t)
	proxy := services.NewProxy(t, conn.PgConn().Conn().RemoteAddr().String())
	proxy.Refuse()
	login := maps.Clone(env)
	address, err := url.Parse(env["CDC_RELAY_DATABASE_URL"])
	must(t, err)
	address.Host = proxy.Addr()
	login["CDC_RELAY_DATABASE_URL"] = address.String()
	relay := start(t, login, "run", "--setup", "--publisher", "stdout", "--log-format", "json")
	relay.await(t, `"event":"postgres_down"`)
	proxy.Accept()
	relay.await(t, `"event":"setup_changed"`)
	relay.await(t, `"event":"streaming"`)
	relay.stopsWell(t)
}

// Older tables are updated, newer ones stay.
func TestRunSetupNeverDowngrades(t *testing.T) {
	env, conn := withTables(t)
	execute(t, conn, "UPDATE outbox_migrations SET version = 99")
	r := cdcRelay(t, env, "run", "--setup", "--publisher", "stdout", "--log-format", "json")
	wantError(t, r, "install the newer cdc-relay")
	if v := query[int](t, conn, "SELECT version FROM outbox_migrations"); v != 99 {
		t.Errorf("version %d", v)
	}
	execute(t, conn, "DELETE FROM outbox_migrations; DROP TABLE outbox, outbox_dead_letter; INSERT INTO outbox_migrations VALUES (0)")
	relay := start(t, env, "run", "--setup", "--publisher", "stdout", "--log-format", "json")
	relay.await(t, "created tables public.outbox and public.outbox_dead_letter (version 1)")
	relay.stopsWell(t)
}

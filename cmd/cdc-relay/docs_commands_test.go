package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// blocks are the parts of a page in that language.
func blocks(t *testing.T, page, language string) []string {
	t.Helper()
	var all []string
	for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(readDoc(t, page), -1) {
		all = append(all, m[1])
	}
	if len(all) == 0 {
		t.Fatalf("docs/%s has no %s", page, language)
	}
	return all
}

// Each command of the pages exists and takes the flags that stand there.
func TestDocsNameCommandsThatExist(t *testing.T) {
	takers := commandsByFlag()
	app := (&process{}).app()
	for _, page := range []string{"../README.md", "getting-started.md", "install.md", "operations.md", "runbook.md", "scaling.md", "security.md", "check.md"} {
		for _, m := range regexp.MustCompile(`(?m)(?:^|[^-/\w])/?cdc-relay ((?:[a-z-]+ )?[a-z-]+)([^\n|#]*)`).FindAllStringSubmatch(strings.Join(blocks(t, page, "sh"), "\n"), -1) {
			words := strings.Fields(m[1])
			command := app.Command(words[0])
			if command == nil || strings.Contains(m[0], "docker") {
				continue // the name of a unit or an image
			}
			path := words[0]
			for _, sub := range command.Subcommands {
				if len(words) > 1 && sub.Name == words[1] {
					path = strings.Join(words, " ")
				}
			}
			for _, f := range regexp.MustCompile(`--([a-z-]+)`).FindAllStringSubmatch(m[2], -1) {
				if !slices.Contains(takers[f[1]], path) {
					t.Errorf("docs/%s: cdc-relay %s takes no --%s", page, path, f[1])
				}
			}
		}
	}
}

// The SQL of the migration is run as it stands, with the application writing as before.
func TestMigrationSQL(t *testing.T) {
	env, conn := fresh(t)
	env["CDC_RELAY_MODE"] = "poll"
	want(t, cdcRelay(t, env, "setup"), exitDone)
	execute(t, conn, `CREATE TABLE events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text, customer text, body jsonb, sent_at timestamptz)`)
	execute(t, conn, `CREATE TABLE outboxevent (id uuid PRIMARY KEY, aggregatetype text NOT NULL, aggregateid text NOT NULL, type text NOT NULL, payload jsonb)`)
	event := `INSERT INTO events (topic, customer, body) VALUES ('orders.created', 'c7', '{"order_id": 42}')`
	execute(t, conn, event)
	sql := blocks(t, "migration.md", "sql")
	if len(sql) != 6 {
		t.Fatalf("%d parts", len(sql))
	}
	expect := func(statement, wanted string) {
		t.Helper()
		if got := query[string](t, conn, statement); got != wanted {
			t.Errorf("%s: got %s, want %s", statement, got, wanted)
		}
	}
	execute(t, conn, sql[0])
	execute(t, conn, event)
	execute(t, conn, sql[1])
	execute(t, conn, sql[1]) // again: nothing is moved twice
	expect(`SELECT string_agg(exchange || ' ' || routing_key || ' ' || ordering_key || ' ' || payload, ';') FROM outbox`,
		`events orders.created c7 {"order_id": 42};events orders.created c7 {"order_id": 42}`)
	expect(`SELECT count(*)::text FROM events WHERE sent_at IS NULL`, "0")
	execute(t, conn, sql[2])
	execute(t, conn, `DELETE FROM outbox`)

	debezium := func(last string) string {
		return `INSERT INTO outboxevent VALUES ('00000000-0000-4000-8000-00000000000` + last + `', 'Order', '42', 'OrderCreated', '{"id": 42}')`
	}
	execute(t, conn, sql[3])
	execute(t, conn, `BEGIN; `+debezium("1")+`; DELETE FROM outboxevent; COMMIT`)
	execute(t, conn, sql[4])
	execute(t, conn, sql[5])
	execute(t, conn, debezium("2"))
	expect(`SELECT string_agg(right(message_id::text, 1) || ' ' || routing_key || ' ' || ordering_key || ' ' || payload || ' ' || (properties->>'type'), ';' ORDER BY id) FROM outbox`,
		`1 outbox.event.Order Order:42 {"id": 42} OrderCreated;2 outbox.event.Order Order:42 {"id": 42} OrderCreated`)
	expect(`SELECT count(*)::text FROM outboxevent`, "0")
}

package main

import (
	"maps"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// A new table in place of one that was renamed or moved would strand its messages. The hint brings them back.
func TestATableThatMovedIsNotCreatedAgain(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ breaks, table, mode, hint string }{
		"renamed":                 {breaks: "ALTER TABLE outbox RENAME TO messages", hint: `ALTER TABLE "public"."messages" RENAME TO "outbox";`},
		"renamed, without stream": {breaks: "ALTER TABLE outbox RENAME TO messages", mode: "poll", hint: `ALTER TABLE "public"."messages" RENAME TO "outbox";`},
		"in another schema":       {breaks: "CREATE SCHEMA other; ALTER TABLE outbox SET SCHEMA other", hint: `ALTER TABLE "other"."outbox" SET SCHEMA "public";`},
		"in another schema, without stream": {
			breaks: "CREATE SCHEMA other; ALTER TABLE outbox SET SCHEMA other", mode: "poll", hint: `ALTER TABLE "other"."outbox" SET SCHEMA "public";`,
		},
		"all tables in another schema": {
			breaks: "CREATE SCHEMA other; ALTER TABLE outbox SET SCHEMA other; ALTER TABLE outbox_dead_letter SET SCHEMA other; ALTER TABLE outbox_migrations SET SCHEMA other",
			hint:   `ALTER TABLE "other"."outbox" SET SCHEMA "public";`,
		},
		"both":                 {breaks: "CREATE SCHEMA other; ALTER TABLE outbox RENAME TO messages; ALTER TABLE messages SET SCHEMA other", hint: `ALTER TABLE "other"."messages" SET SCHEMA "public"; ALTER TABLE "public"."messages" RENAME TO "outbox";`},
		"a renamed schema":     {breaks: "ALTER SCHEMA apps RENAME TO shop", table: "apps.outbox", hint: `--table shop.outbox`},
		"a mistake in --table": {breaks: "SELECT 1", table: "public.outbxo", hint: "--table public.outbox"},
		"dead letters renamed": {breaks: "ALTER TABLE outbox_dead_letter RENAME TO dead", hint: `ALTER TABLE "public"."dead" RENAME TO "outbox_dead_letter";`},
		"dead letters in another schema": {
			breaks: "CREATE SCHEMA other; ALTER TABLE outbox_dead_letter SET SCHEMA other", mode: "poll", hint: `ALTER TABLE "other"."outbox_dead_letter" SET SCHEMA "public";`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, conn := fresh(t)
			env["CDC_RELAY_LOG_FORMAT"] = "text"
			if test.mode != "" {
				env["CDC_RELAY_MODE"] = test.mode
			}
			before := maps.Clone(env)
			if strings.HasPrefix(test.table, "apps") {
				before["CDC_RELAY_TABLE"] = test.table
			}
			want(t, cdcRelay(t, before, "setup"), exitDone)
			execute(t, conn, test.breaks)
			if test.table != "" {
				env["CDC_RELAY_TABLE"] = test.table
			}
			tables := "SELECT string_agg(oid::regclass::text, ' ' ORDER BY oid) FROM pg_class WHERE relkind = 'r' AND relname ~ 'outb|dead|messages'"
			found := query[string](t, conn, tables)
			for _, args := range [][]string{{"setup"}, {"run", "--setup", "--publisher", "stdout"}} {
				r := cdcRelay(t, env, args...)
				want(t, r, exitFailed)
				if !strings.Contains(r.stderr, test.hint) {
					t.Errorf("%v: got %s", args, r.stderr)
				}
			}
			if now := query[string](t, conn, tables); now != found {
				t.Errorf("there are tables %s, were %s", now, found)
			}
			if sql := strings.HasPrefix(test.hint, "ALTER"); sql && !strings.HasPrefix(name, "all") {
				execute(t, conn, test.hint)
				wantOutput(t, cdcRelay(t, env, "setup"), "version 1, nothing to do")
			}
		})
	}
}

// A second outbox has its own publication, and a dropped table comes back.
func TestTablesThatDidNotMoveAreCreated(t *testing.T) {
	t.Parallel()
	env, conn := withTables(t)
	second := []string{"setup", "--table", "billing.outbox", "--slot", services.Name(t), "--publication", "billing"}
	wantOutput(t, cdcRelay(t, env, second...), "created tables billing.outbox")
	execute(t, conn, "CREATE TABLE copy AS SELECT * FROM outbox; DROP TABLE outbox")
	wantOutput(t, cdcRelay(t, env, "setup"), "created table public.outbox again", "added table public.outbox to publication")
	wantOutput(t, cdcRelay(t, env, second...), "version 1, nothing to do")
}

package main

import (
	"strings"
	"testing"
)

func TestAdoptSendsNewRowsToTheOutbox(t *testing.T) {
	t.Parallel()
	env, conn := fresh(t)
	env["CDC_RELAY_MODE"] = "poll"
	execute(t, conn, `CREATE TABLE outboxevent (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload jsonb)`)
	execute(t, conn, `CREATE TABLE events (id bigserial PRIMARY KEY, topic text, body text, sent_at timestamptz)`)
	execute(t, conn, `INSERT INTO events (topic, body) VALUES ('a', '1'), ('a', '2')`)
	wantError(t, cdcRelay(t, env, "adopt", "debezium"), "the outbox public.outbox does not exist", "hint: cdc-relay setup")
	want(t, cdcRelay(t, env, "setup"), exitDone)
	events := []string{"adopt", "--from", "events", "--set", "routing_key=topic", "--set", "payload=body", "--set", "message_id=id"}

	wantOutput(t, cdcRelay(t, env, "adopt", "debezium"), "adopted table public.outboxevent: new rows go to public.outbox at COMMIT\n")
	wantOutput(t, cdcRelay(t, env, "adopt", "debezium"), "table public.outboxevent: adopted before\n")
	wantError(t, cdcRelay(t, env, events...), "table public.events has rows", "hint: --waiting all")
	wantOutput(t, cdcRelay(t, env, append(events, "--waiting", "sent_at IS NULL")...), "moved 2 rows from public.events to public.outbox\n", "adopted table public.events")
	execute(t, conn, `INSERT INTO events (topic, body) VALUES ('a', '3')`)
	wantValue(t, conn, "a1 a2 a3", `SELECT string_agg(routing_key || payload, ' ' ORDER BY id) FROM outbox`)
	wantOutput(t, cdcRelay(t, env, "check", "--all", "--publisher", "stdout"), "new rows of public.events are published", "new rows of public.outboxevent are published")

	execute(t, conn, `DROP TRIGGER cdc_relay_adopt ON events`)
	r := cdcRelay(t, env, "check", "--publisher", "stdout")
	want(t, r, exitFailed)
	wantTexts(t, r.stdout, "table public.events was adopted and has lost its trigger",
		"cdc-relay adopt --from public.events --set routing_key=topic --set payload=body --set message_id=id --waiting CONDITION")
	execute(t, conn, `DELETE FROM outbox`)
	wantError(t, cdcRelay(t, env, "teardown", "--tables", "--yes"), "rows of public.events go to public.outbox: no table was dropped", "hint: cdc-relay adopt --undo --from public.events")
	wantError(t, cdcRelay(t, env, "adopt", "--undo"), "2 tables were adopted into public.outbox: public.events, public.outboxevent")
	wantOutput(t, cdcRelay(t, env, "adopt", "--undo", "--from", "events"), "table public.events keeps its new rows again\n")
	wantOutput(t, cdcRelay(t, env, "adopt", "debezium", "--undo", "--print-sql"), `DROP TRIGGER cdc_relay_adopt ON "public"."outboxevent";`)
	wantOutput(t, cdcRelay(t, env, "adopt", "--undo"), "table public.outboxevent keeps its new rows again\n")
	wantError(t, cdcRelay(t, env, "adopt", "--undo"), "no table was adopted into public.outbox")
	wantOutput(t, cdcRelay(t, env, "teardown", "--tables", "--yes"), "dropped tables")
}

func TestAdoptReportsWrongUsage(t *testing.T) {
	const url = " --database-url " + someDatabase
	for args, line := range map[string]string{
		"adopt debezim":                    `adopt: unknown command "debezim", did you mean "debezium"?`,
		"adopt debezium --form x" + url:    "adopt debezium: unknown flag --form, did you mean --from?",
		"adopt --from x debezium" + url:    "adopt: flags go after debezium",
		"adopt --from a --set topic" + url: `--set: "topic": want COLUMN OF THE OUTBOX=EXPRESSION`,
		"adopt --from a.b.c" + url:         `--from: table name "a.b.c": want name or schema.name`,
	} {
		wantUsage(t, cdcRelay(t, nil, strings.Fields(args)...), line)
	}
	wantOutput(t, cdcRelay(t, nil, "adopt", "--help"), "celery-outbox", "--waiting CONDITION", "cdc-relay adopt [debezium|celery-outbox|watermill|cap|namastack] [FLAGS]")
	env, _ := fresh(t)
	wantUsage(t, cdcRelay(t, env, "adopt", "--from", "x"), "adopt: --set is not set, nor one of debezium, celery-outbox, watermill, cap, namastack given")
	wantUsage(t, cdcRelay(t, env, "adopt", "--set", "payload=x"), "adopt: --from is not set: it is the table to adopt")
}

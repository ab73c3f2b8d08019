package migrations_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func makeFunctions(t *testing.T, conn *pgx.Conn, table outbox.Table) {
	t.Helper()
	_, err := migrations.MakeFunctions(t.Context(), conn, table)
	must(t, err)
}

// withFunctions creates a database with an outbox, and a role that may only call the functions.
func withFunctions(t *testing.T) (owner, app *pgx.Conn) {
	t.Helper()
	url := services.Database(t)
	owner = tabletest.Connect(t, url)
	exec1(t, owner, "REVOKE ALL ON SCHEMA public FROM PUBLIC")
	up(t, owner, tabletest.Name())
	makeFunctions(t, owner, tabletest.Name())
	app = as(t, url, owner)
	letCall(t, owner, tabletest.Name(), value[string](t, app, "SELECT current_user::text"))
	return owner, app
}

func letCall(t *testing.T, owner *pgx.Conn, table outbox.Table, role string) {
	t.Helper()
	exec1(t, owner, "GRANT USAGE ON SCHEMA "+outbox.QuoteIdentifier(table.Schema)+" TO "+role)
	for _, f := range migrations.Functions(table) {
		exec1(t, owner, "GRANT EXECUTE ON FUNCTION "+f.SQL()+" TO "+role)
	}
}

func value[T any](t *testing.T, conn *pgx.Conn, sql string, args ...any) T {
	t.Helper()
	return tabletest.One[T](&tabletest.Tables{TB: t, Conn: conn}, sql, args...)
}

// is compares the only value of a query, as text.
func is(t *testing.T, conn *pgx.Conn, want any, sql string, args ...any) {
	t.Helper()
	if got := value[any](t, conn, sql, args...); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s %v: got %v, want %v", sql, args, got, want)
	}
}

func wantError(t *testing.T, conn *pgx.Conn, sql, state, names string) {
	t.Helper()
	_, err := conn.Exec(t.Context(), sql)
	wantState(t, err, state, names)
}

// row returns the newest message as JSON, without its times and ids.
func row(t *testing.T, owner *pgx.Conn) map[string]any {
	t.Helper()
	return value[map[string]any](t, owner, "SELECT jsonb_strip_nulls(to_jsonb(o) - '{id,created_at,attempts,schema_version}'::text[]) FROM outbox o ORDER BY id DESC LIMIT 1")
}

func TestFunctionsAreCreatedOnceForAnyName(t *testing.T) {
	conn := tabletest.Connect(t, services.Database(t))
	for _, table := range weirdTables() {
		up(t, conn, table)
		for _, want := range []bool{true, false} {
			if changed, err := migrations.MakeFunctions(t.Context(), conn, table); changed != want || err != nil {
				t.Fatalf("%s: changed %v, %v, want %v", table, changed, err, want)
			}
		}
		function := func(suffix string) string { return outbox.Table{Schema: table.Schema, Name: table.Name + suffix}.SQL() }
		exec1(t, conn, "SELECT "+function("_enqueue")+"('k', '{}')")
		id := value[string](t, conn, "SELECT "+function("_celery")+"('tasks.add')::text")
		is(t, conn, "waiting", "SELECT "+function("_await")+"($1, '1 ms')", id)
		exec1(t, conn, "UPDATE "+table.SQL()+" SET available_at = 'infinity' WHERE message_id = $1", id)
		is(t, conn, true, "SELECT "+function("_cancel")+"($1)", id)
		exec1(t, conn, "DELETE FROM "+table.SQL())
		if dropped, err := migrations.Drop(t.Context(), conn, table); !dropped || err != nil {
			t.Errorf("%s: drop: %v, %v", table, dropped, err)
		}
	}
	is(t, conn, 0, "SELECT count(*) FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'")
}

// Functions created by a superuser do not run with the superuser's rights.
func TestTheFunctionsBelongToTheOwnerOfTheTable(t *testing.T) {
	url := services.Database(t)
	owner := tabletest.Connect(t, url)
	role := value[string](t, as(t, url, owner), "SELECT current_user::text")
	up(t, owner, tabletest.Name())
	exec1(t, owner, "GRANT CREATE, USAGE ON SCHEMA public TO "+role)
	exec1(t, owner, "ALTER TABLE outbox OWNER TO "+role)
	makeFunctions(t, owner, tabletest.Name())
	is(t, owner, role, "SELECT string_agg(DISTINCT pg_get_userbyid(proowner), ',') FROM pg_proc WHERE proname ~ '^outbox_'")
}

func TestEnqueueInsertsAMessage(t *testing.T) {
	owner, app := withFunctions(t)
	id := value[string](t, app, "SELECT outbox_enqueue('orders.created', '{\"a\":  1}')::text")
	got := fmt.Sprint(row(t, owner))
	if want := fmt.Sprint(map[string]any{"message_id": id, "routing_key": "orders.created", "payload": map[string]any{"a": 1}}); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	is(t, owner, `{"a":  1}`, "SELECT payload::text FROM outbox")
	exec1(t, app, `SELECT outbox_enqueue('k', '[1]', exchange => 'shop', ordering_key => 'o1', headers => '{"h": 1}', properties => '{"priority": 3}',
		available_at => '2030-01-01Z', max_attempts => 1, expires_at => '2031-01-01Z', coalesce_key => 'c', message_id => '00000000-0000-0000-0000-000000000001',
		redacted_payload => '["*"]')`)
	is(t, owner, true, `SELECT (exchange, routing_key, ordering_key, payload::text, headers, properties, available_at, max_attempts, expires_at, coalesce_key, message_id, redacted_payload::text)
		= ('shop', 'k', 'o1', '[1]', '{"h": 1}', '{"priority": 3}', '2030-01-01Z', 1, '2031-01-01Z', 'c', '00000000-0000-0000-0000-000000000001', '["*"]')
		FROM outbox ORDER BY id DESC LIMIT 1`)
	exec1(t, app, "BEGIN; SELECT outbox_enqueue('rolled.back', '{}'); ROLLBACK")
	is(t, owner, 2, "SELECT count(*) FROM outbox")
	wantError(t, app, "SELECT outbox_enqueue(NULL, '{}')", "23502", "routing_key")
	wantError(t, app, "SELECT outbox_enqueue('k', NULL)", "22004", "payload is null")
	wantError(t, app, "SELECT outbox_enqueue('k', '{')", "22P02", "json")
	wantError(t, app, "SELECT outbox_enqueue('k', '{}', max_attempts => 32768)", "22003", "smallint out of range")
	wantError(t, app, "SELECT outbox_enqueue('k', '{}', headers => '[1]')", "22023", "headers must be a JSON object, not JSON array")
}

func TestEnqueueAddsTheHeadersOfTheTransaction(t *testing.T) {
	owner, app := withFunctions(t)
	for _, test := range []struct{ set, given, want string }{
		{`{"trace": "t1"}`, `NULL`, `map[trace:t1]`},
		{`{"trace": "t1", "request": 1}`, `'{"trace": "own"}'`, `map[request:1 trace:own]`},
		{``, `'{"a": true}'`, `map[a:true]`},
		{``, `NULL`, `<nil>`},
	} {
		exec1(t, app, "BEGIN")
		exec1(t, app, "SELECT set_config('cdc_relay.headers', $1, true)", test.set)
		exec1(t, app, "SELECT outbox_enqueue('k', '{}', headers => "+test.given+"); COMMIT")
		if got := fmt.Sprint(row(t, owner)["headers"]); got != test.want {
			t.Errorf("%+v: got %s", test, got)
		}
	}
	exec1(t, app, "SELECT outbox_enqueue('after', '{}')") // SET LOCAL has ended
	if got := row(t, owner)["headers"]; got != nil {
		t.Errorf("after the transaction: %v", got)
	}
	for _, wrong := range []string{`secret{`, `[1]`, `null`, `"text"`, `{"a": "\u0000"}`} {
		exec1(t, app, "SELECT set_config('cdc_relay.headers', $1, false)", wrong)
		wantError(t, app, "SELECT outbox_enqueue('k', '{}')", "22023", "the setting cdc_relay.headers is not a JSON object")
		wantError(t, app, "SELECT outbox_celery('t')", "22023", "the setting cdc_relay.headers is not a JSON object")
	}
}

func TestCeleryInsertsATask(t *testing.T) {
	owner, app := withFunctions(t)
	id := value[string](t, app, `SELECT outbox_celery('tasks.add', args => '[1, 2.50]', kwargs => '{"x": "y"}', queue => 'math', countdown => 60,
		expires => '2030-01-02 03:04:05.6+02', priority => 7, reply_to => 'answers')::text`)
	is(t, owner, `[[1, 2.50], {"x": "y"}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]`, "SELECT payload::text FROM outbox")
	is(t, owner, true, "SELECT available_at BETWEEN now() + '59 s' AND now() + '61 s' AND expires_at = '2030-01-02 01:04:05.6Z' FROM outbox")
	message := row(t, owner)
	headers, properties := message["headers"].(map[string]any), message["properties"].(map[string]any)
	for key, want := range map[string]any{"task": "tasks.add", "id": id, "root_id": id, "lang": "py", "retries": 0, "expires": "2030-01-02T01:04:05.600000+00:00", "argsrepr": "[1, 2.50]"} {
		if fmt.Sprint(headers[key]) != fmt.Sprint(want) {
			t.Errorf("header %s: %v", key, headers[key])
		}
	}
	if want := "map[content_encoding:utf-8 content_type:application/json correlation_id:" + id + " priority:7 reply_to:answers]"; fmt.Sprint(properties) != want {
		t.Errorf("properties: %v", properties)
	}
	if message["exchange"] != "" || message["routing_key"] != "math" || message["message_id"] != id {
		t.Errorf("got %v", message)
	}
	eta := value[string](t, app, "SELECT outbox_celery('t', eta => '2030-05-05Z', task_id => '00000000-0000-0000-0000-000000000002')::text")
	if eta != "00000000-0000-0000-0000-000000000002" || !value[bool](t, owner, "SELECT available_at = '2030-05-05Z' AND headers -> 'eta' = 'null' FROM outbox ORDER BY id DESC LIMIT 1") {
		t.Errorf("eta: %s, %v", eta, row(t, owner))
	}
	exec1(t, app, "SELECT outbox_celery('t', countdown => 0)")
	is(t, owner, nil, "SELECT available_at FROM outbox ORDER BY id DESC LIMIT 1")               // else it would wait for a sweep
	for _, kind := range []string{"integer", "bigint", "numeric", "real", "double precision"} { // as client libraries bind numbers
		exec1(t, app, "SELECT outbox_celery('t', countdown => 2::"+kind+")")
	}
	wantError(t, app, `SELECT outbox_celery('t', args => '{}')`, "22023", "args must be a JSON array")
	wantError(t, app, `SELECT outbox_celery('t', kwargs => '[]')`, "22023", "kwargs a JSON object")
	wantError(t, app, `SELECT outbox_celery(NULL)`, "22004", "task and queue")
}

// argsrepr and kwargsrepr are headers, which monitors of Celery show and logs may contain.
func TestTheHeadersOfARedactedTaskContainNoArguments(t *testing.T) {
	owner, app := withFunctions(t)
	for _, test := range []struct{ redacted, args, kwargs string }{
		{`[["ada", "*"], {"card": "*"}]`, `["ada", "*"]`, `{"card": "*"}`},
		{`["*", "hidden"]`, `*`, `hidden`},
		{`[["ada"]]`, `["ada"]`, `...`},
		{`[null, []]`, `...`, `[]`},
		{`{"0": 1}`, `...`, `...`},
		{`"hidden"`, `...`, `...`},
		{`null`, `...`, `...`},
		{`["` + strings.Repeat("x", 2000) + `", 1]`, strings.Repeat("x", 1024), `1`},
	} {
		exec1(t, app, `SELECT outbox_celery('pay', args => '["ada", "s3cret"]', kwargs => '{"card": "s3cret"}', redacted_payload => $1)`, test.redacted)
		headers := row(t, owner)["headers"].(map[string]any)
		if headers["argsrepr"] != test.args || headers["kwargsrepr"] != test.kwargs || strings.Contains(fmt.Sprint(headers), "s3cret") {
			t.Errorf("%s: %v", test.redacted, headers)
		}
		is(t, owner, test.redacted+` ["ada", "s3cret"]`, "SELECT concat_ws(' ', redacted_payload, payload ->> 0) FROM outbox ORDER BY id DESC LIMIT 1")
	}
}

func TestCancelDeletesAMessageWhoseTimeHasNotCome(t *testing.T) {
	owner, app := withFunctions(t)
	const id = "00000000-0000-0000-0000-000000000007"
	for values, cancels := range map[string]bool{
		"clock_timestamp() + interval '1 h', 0, NULL": true,
		"'infinity', 0, false":                        true,
		"clock_timestamp() + interval '1 h', 3, NULL": true,  // it waits for a retry, and no queue has it
		"clock_timestamp() + interval '1 h', 3, true": false, // a queue may have it

		"NULL, 0, NULL":              false, // a relay may be publishing it
		"clock_timestamp(), 0, NULL": false,
		"'-infinity', 0, NULL":       false,
	} {
		exec1(t, owner, "INSERT INTO outbox (routing_key, payload, message_id, available_at, attempts, possible_duplicate) VALUES ('k', '1', '"+id+"', "+values+")")
		is(t, app, cancels, "SELECT outbox_cancel($1)", id)
		is(t, owner, !cancels, "SELECT EXISTS (SELECT FROM outbox)")
		exec1(t, owner, "TRUNCATE outbox")
	}
	exec1(t, owner, "INSERT INTO outbox (routing_key, payload, available_at) VALUES ('other', '1', 'infinity')")
	is(t, app, false, "SELECT outbox_cancel($1)", id)
	is(t, owner, 1, "SELECT count(*) FROM outbox")
	wantError(t, app, "SELECT outbox_cancel(NULL)", "22004", "message_id is null")

	// The retry of a Celery task, beside messages whose ids begin as that of the task.
	exec1(t, owner, `INSERT INTO outbox (routing_key, payload, available_at, message_id, headers) VALUES
		('retry', '1', 'infinity', '00000000-0000-0000-0000-00000abcdef0', '{"id": "`+id+`"}'), ('other task', '1', 'infinity', '00000000-0000-0000-0000-000000000008', '{"id": "x"}'),
		('other form', '1', 'infinity', '00000000-0000-0000-0000-000000000009', '["`+id+`"]')`)
	is(t, app, true, "SELECT outbox_cancel($1)", id)
	is(t, owner, "other, other task, other form", "SELECT string_agg(routing_key, ', ' ORDER BY id) FROM outbox")

	// Several rows of one id, which any role with INSERT can plant: one that may leave, or has ended, decides for all.
	for _, first := range []string{
		"INSERT INTO outbox (routing_key, payload, message_id) VALUES ('k', '1', '" + id + "')",
		"INSERT INTO outbox (routing_key, payload, message_id, available_at) VALUES ('k', '1', '" + id + "', now())",
		"INSERT INTO outbox (routing_key, payload, message_id, available_at, possible_duplicate) VALUES ('k', '1', '" + id + "', 'infinity', true)",
		`INSERT INTO outbox_dead_letter (id, created_at, message_id, attempts, schema_version, routing_key, payload, failure_reason)
			VALUES (0, now(), '` + id + `', 1, 1, 'k', '1', 'nack')`,
	} {
		for _, decoy := range []string{
			"('decoy', '1', 'infinity', '" + id + "', NULL)",
			`('decoy', '1', 'infinity', '00000000-0000-0000-0000-00000abcdef0', '{"id": "` + id + `"}')`,
		} {
			exec1(t, owner, "TRUNCATE outbox, outbox_dead_letter; "+first+
				"; INSERT INTO outbox (routing_key, payload, available_at, message_id, headers) VALUES "+decoy)
			is(t, app, false, "SELECT outbox_cancel($1)", id)
			is(t, owner, 2, "SELECT (SELECT count(*) FROM outbox) + (SELECT count(*) FROM outbox_dead_letter)")
		}
	}
	exec1(t, owner, "TRUNCATE outbox, outbox_dead_letter; INSERT INTO outbox (routing_key, payload, message_id, available_at) SELECT 'k', '1', '"+id+"', 'infinity' FROM generate_series(1, 2)")
	is(t, app, true, "SELECT outbox_cancel($1)", id)
	is(t, owner, 0, "SELECT count(*) FROM outbox")
}

// The session with the lock decides: a relay that publishes the row, or another caller.
func TestCancelDoesNotWaitForALock(t *testing.T) {
	owner, app := withFunctions(t)
	id := value[string](t, app, "SELECT outbox_enqueue('k', '1', available_at => 'infinity')::text")
	exec1(t, owner, "INSERT INTO outbox (routing_key, payload, message_id, available_at) VALUES ('same id', '1', '"+id+"', 'infinity')")
	exec1(t, owner, "BEGIN; SELECT FROM outbox WHERE routing_key = 'k' FOR UPDATE")
	exec1(t, app, "SET lock_timeout = '1 ms'") // for the table too, so a wait fails
	is(t, app, false, "SELECT outbox_cancel($1)", id)
	exec1(t, owner, "ROLLBACK")
	is(t, owner, 2, "SELECT count(*) FROM outbox")
	exec1(t, app, "BEGIN")
	is(t, app, true, "SELECT outbox_cancel($1)", id)
	exec1(t, app, "ROLLBACK")
	is(t, owner, 2, "SELECT count(*) FROM outbox")
}

// A relay may take the row, and lose it again, between the search and the lock.
func TestCancelComparesTheTimeOnceMore(t *testing.T) {
	owner, app := withFunctions(t)
	id := value[string](t, app, "SELECT outbox_enqueue('k', '1', available_at => 'infinity')::text")
	exec1(t, owner, "BEGIN; LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")
	answer := make(chan error, 1)
	cancelled := true
	go func() { answer <- app.QueryRow(t.Context(), "SELECT outbox_cancel($1)", id).Scan(&cancelled) }()
	pid := app.PgConn().PID()
	await.Until(t, "the call waits for the table", func() bool {
		return value[bool](t, owner, "SELECT cardinality(pg_blocking_pids($1)) > 0", pid)
	})
	exec1(t, owner, "UPDATE outbox SET available_at = clock_timestamp(); COMMIT")
	if err := await.Receive(t, "the answer", answer); err != nil || cancelled {
		t.Errorf("cancelled %t, %v", cancelled, err)
	}
}

func TestAwaitReturnsTheStateOfAMessage(t *testing.T) {
	owner, app := withFunctions(t)
	const bury = `WITH d AS (DELETE FROM outbox RETURNING *) INSERT INTO outbox_dead_letter
		(id, created_at, message_id, attempts, schema_version, routing_key, payload, failure_reason)
		SELECT id, created_at, message_id, attempts, schema_version, routing_key, payload, 'unroutable' FROM d`
	for name, c := range map[string]struct{ before, during, want string }{
		// It returns as soon as the row is deleted, before its timeout.
		"published": {"SELECT", "DELETE FROM outbox", "published"},
		"dead":      {"SELECT", bury, "dead: unroutable"},
		// Any role with INSERT can plant a row of the same id: the message is published once none of them is there.
		"a decoy is published": {
			"INSERT INTO outbox (routing_key, payload, message_id) SELECT 'decoy', '1', message_id FROM outbox",
			"DELETE FROM outbox WHERE routing_key = 'decoy'; " + bury, "dead: unroutable",
		},
	} {
		exec1(t, owner, "TRUNCATE outbox, outbox_dead_letter")
		id := value[string](t, app, "SELECT outbox_enqueue('k', '{}')::text")
		exec1(t, owner, c.before)
		is(t, app, "waiting", "SELECT outbox_await($1, '20 ms')", id)
		answer := make(chan string, 1)
		go func() {
			var got string
			if err := app.QueryRow(t.Context(), "SELECT outbox_await($1, '1 h')", id).Scan(&got); err != nil {
				got = err.Error()
			}
			answer <- got
		}()
		await.Until(t, "the function sleeps", func() bool {
			return value[bool](t, owner, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database())")
		})
		exec1(t, owner, c.during)
		if got := await.Receive(t, "the answer", answer); got != c.want {
			t.Errorf("%s: got %s", name, got)
		}
		is(t, app, c.want, "SELECT outbox_await($1, '1 h')", id)
	}
}

func TestAwaitBeforeCommitIsAnError(t *testing.T) {
	_, app := withFunctions(t)
	for _, begin := range []string{
		"BEGIN; SELECT outbox_enqueue('k', '{}')",
		"BEGIN; SAVEPOINT s; SELECT outbox_enqueue('k', '{}')",
		"BEGIN ISOLATION LEVEL REPEATABLE READ",
	} {
		exec1(t, app, begin)
		wantError(t, app, "SELECT outbox_await(gen_random_uuid(), '1 h')", "25001", "only after COMMIT")
		exec1(t, app, "ROLLBACK")
	}
	wantError(t, app, "SELECT outbox_await(NULL)", "22004", "message_id is null")
}

// A standby that lags has neither table's row, and would make a waiting message look published.
func TestAwaitWorksOnlyOnThePrimary(t *testing.T) {
	services.Thorough(t, "starts servers of its own")
	primary := services.PrivatePostgres(t)
	conn := tabletest.Connect(t, primary.URL("postgres"))
	up(t, conn, tabletest.Name())
	makeFunctions(t, conn, tabletest.Name())
	standby := services.Standby(t, primary)
	replica := tabletest.Connect(t, standby.URL("postgres"))
	await.Until(t, "the function is on the standby", func() bool {
		return value[bool](t, replica, "SELECT to_regproc('public.outbox_await') IS NOT NULL")
	})
	wantError(t, replica, "SELECT outbox_await(gen_random_uuid())", "55000", "not on a standby")
}

// A caller who owns a schema with look-alikes of everything, first in the search_path, changes nothing.
func TestFunctionsIgnoreTheSearchPathOfTheCaller(t *testing.T) {
	owner, app := withFunctions(t)
	role := value[string](t, app, "SELECT current_user::text")
	exec1(t, owner, "CREATE SCHEMA evil AUTHORIZATION "+role)
	exec1(t, owner, "DO 'BEGIN EXECUTE format(''GRANT TEMPORARY ON DATABASE %I TO "+role+"'', current_database()); END'")
	trap := " LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''trapped as %'', current_user; END'"
	exec1(t, app, "SET search_path = evil, pg_temp, pg_catalog, public")
	for _, statement := range []string{
		"CREATE FUNCTION evil.gen_random_uuid() RETURNS uuid" + trap,
		"CREATE FUNCTION evil.current_setting(text, boolean) RETURNS text" + trap,
		"CREATE FUNCTION evil.jsonb_typeof(jsonb) RETURNS text" + trap,
		"CREATE FUNCTION evil.left(text, integer) RETURNS text" + trap,
		"CREATE FUNCTION evil.to_char(timestamp, text) RETURNS text" + trap,
		"CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz" + trap,
		"CREATE FUNCTION evil.pg_sleep(double precision) RETURNS void" + trap,
		"CREATE FUNCTION evil.merge(jsonb, jsonb) RETURNS jsonb" + trap,
		"CREATE OPERATOR evil.|| (FUNCTION = evil.merge, LEFTARG = jsonb, RIGHTARG = jsonb)",
		"CREATE FUNCTION evil.pg_try_advisory_xact_lock(bigint) RETURNS boolean" + trap,
		"CREATE FUNCTION evil.hashtextextended(text, bigint) RETURNS bigint" + trap,
		"CREATE FUNCTION evil.eq(uuid, uuid) RETURNS boolean" + trap,
		"CREATE OPERATOR evil.= (FUNCTION = evil.eq, LEFTARG = uuid, RIGHTARG = uuid)",
		"CREATE TABLE evil.outbox (id bigint)",
		"CREATE TEMPORARY TABLE outbox (id bigint)",
		"CREATE TEMPORARY TABLE outbox_dead_letter (id bigint)",
		"CREATE DOMAIN pg_temp.uuid AS text",
		"CREATE DOMAIN pg_temp.jsonb AS text",
		`SELECT pg_catalog.set_config('cdc_relay.headers', '{"a": 1}', false)`,
		`SELECT public.outbox_enqueue('k', '{}', headers => '{"b": 2}')`,
		"SELECT public.outbox_celery('t', countdown => 1, expires => 'infinity')",
		"SELECT public.outbox_await('00000000-0000-0000-0000-000000000001', '1 ms')",
		"SELECT public.outbox_celery('t', redacted_payload => '[1]')",
		"SELECT public.outbox_cancel('00000000-0000-0000-0000-000000000001')",
	} {
		exec1(t, app, statement)
	}
	is(t, owner, 3, "SELECT count(*) FROM public.outbox WHERE headers @> '{\"a\": 1}'")
}

// In many databases every role may create functions in the schema public. Functions of the same name must not disturb
// the call inside outbox_celery, which runs with the rights of the table's owner.
func TestOverloadsOfOthersAreNotCalled(t *testing.T) {
	owner, app := withFunctions(t)
	exec1(t, owner, "GRANT CREATE ON SCHEMA public TO "+value[string](t, app, "SELECT current_user::text"))
	trap := " RETURNS uuid LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''trapped as %'', current_user; END'"
	exec1(t, app, "CREATE FUNCTION public.outbox_enqueue(exchange text, routing_key text, message_id uuid, expires_at timestamptz, available_at timestamptz, payload json, headers jsonb, properties jsonb)"+trap)
	exec1(t, app, "CREATE FUNCTION public.outbox_enqueue(text, json, text, text, jsonb, jsonb, timestamptz, integer, timestamptz, text, uuid, json, more text DEFAULT NULL)"+trap)
	exec1(t, app, "SELECT outbox_celery('t')")
}

// A role that created a function of the same name lets nobody call the one of the outbox.
func TestFunctionsOfOtherRolesLoseTheirGrants(t *testing.T) {
	table, conn := tabletest.Name(), tabletest.Connect(t, services.Database(t))
	up(t, conn, table)
	pid := fmt.Sprint(conn.PgConn().PID())
	mallory, friend, reporting, granted := "mallory_"+pid, "friend_"+pid, "reporting_"+pid, "granted_"+pid
	roles := []string{friend, granted, mallory, reporting}
	for _, role := range roles {
		exec1(t, conn, "CREATE ROLE "+role)
		defer func() { exec1(t, conn, "DROP OWNED BY "+role); exec1(t, conn, "DROP ROLE "+role) }()
	}
	all := func(statements ...string) {
		t.Helper()
		for _, statement := range statements {
			exec1(t, conn, statement)
		}
	}
	const parameters = `(routing_key text, payload json, exchange text DEFAULT NULL, ordering_key text DEFAULT NULL, headers jsonb DEFAULT NULL, properties jsonb DEFAULT NULL,
		available_at timestamptz DEFAULT NULL, max_attempts integer DEFAULT NULL, expires_at timestamptz DEFAULT NULL, coalesce_key text DEFAULT NULL, message_id uuid DEFAULT NULL,
		redacted_payload json DEFAULT NULL)`
	all(`GRANT CREATE ON SCHEMA public TO `+mallory, `ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO `+reporting, `SET ROLE `+mallory,
		`CREATE FUNCTION public.outbox_enqueue`+parameters+` RETURNS uuid LANGUAGE sql AS 'SELECT NULL::uuid'`,
		`CREATE FUNCTION public.outbox_await(a uuid, b interval) RETURNS integer LANGUAGE sql AS 'SELECT 1'`, // result and names differ
		`CREATE FUNCTION public.outbox_rotate(keep interval) RETURNS integer LANGUAGE sql AS 'SELECT 1'`,
		`GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO `+friend+` WITH GRANT OPTION`, `RESET ROLE`,
		`SET ROLE `+friend, `GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO `+reporting, `RESET ROLE`)
	foreign, err := migrations.ForeignFunctions(t.Context(), conn, table)
	if err != nil || len(foreign) != 2 || !foreign[1].Same || foreign[0].Owner != mallory || !slices.Equal(foreign[0].Grantees, []string{friend, reporting}) {
		t.Errorf("%+v, %v", foreign, err)
	}
	wantCallers := func(want ...string) {
		t.Helper()
		got := value[string](t, conn, `SELECT coalesce(string_agg(DISTINCT r, ', ' ORDER BY r), '') FROM unnest($1::text[]) r, pg_proc p
			WHERE p.proname IN ('outbox_enqueue', 'outbox_celery', 'outbox_await', 'outbox_cancel', 'outbox_rotate') AND has_function_privilege(r, p.oid, 'EXECUTE')`, roles)
		if got != strings.Join(want, ", ") {
			t.Errorf("%s may call the functions, want %s", got, want)
		}
	}
	makeBoth := func(role string) {
		t.Helper()
		makeFunctions(t, conn, table)
		if role != "" {
			letCall(t, conn, table, role)
		}
		_, err := migrations.MakeHistory(t.Context(), conn, table)
		must(t, err)
	}
	makeBoth("")
	wantCallers()
	all(`GRANT EXECUTE ON FUNCTION outbox_await TO ` + granted)
	makeBoth(friend)
	wantCallers(friend, granted) // what the owner granted stays
	for _, other := range []string{"(text)", "(text, json, text)", "(text, jsonb, text, a int DEFAULT 1)", "(VARIADIC text[])", "()"} {
		all(`SET ROLE `+mallory, `CREATE FUNCTION public.outbox_enqueue`+other+` RETURNS uuid LANGUAGE sql AS 'SELECT NULL::uuid'`, `RESET ROLE`)
		makeBoth("")
		foreign, err := migrations.ForeignFunctions(t.Context(), conn, table)
		if err != nil || len(foreign) != 1 || foreign[0].Same || foreign[0].Owner != mallory {
			t.Errorf("with a second function %s: %+v, %v", other, foreign, err)
		}
		all(`DROP FUNCTION public.outbox_enqueue` + strings.Replace(other, " DEFAULT 1", "", 1))
	}
	all(`DROP TABLE outbox_published`, `SET ROLE `+mallory, `CREATE TABLE public.outbox_published (id bigint)`, `RESET ROLE`)
	if _, err := migrations.MakeHistory(t.Context(), conn, table); err == nil || !strings.Contains(err.Error(), "belongs to role "+mallory) {
		t.Errorf("with a history of another role: %v", err)
	}
}

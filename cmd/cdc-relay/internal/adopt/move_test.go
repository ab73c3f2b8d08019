package adopt_test

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/adopt"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func TestWaitingRowsAreMoved(t *testing.T) {
	s := open(t, events)
	s.Exec(`INSERT INTO events (topic, customer, body, sent_at) SELECT 't', 'c' || i % 10, i, CASE WHEN i % 2 = 0 THEN now() END FROM generate_series(1, 5000) i`)
	r := s.request("", "events", eventMap, "")
	s.fails(s.Conn, r, "nothing says which of them are still to be sent", "--waiting all")
	r.Waiting = "sent_a IS NULL"
	s.fails(s.Conn, r, "sent_a", "id, topic, customer, body, sent_at")
	r.Waiting = "sent_at IS NULL"

	// The application writes meanwhile: no row is lost or duplicated, and the order stays.
	stop, done := make(chan struct{}), make(chan int, 1)
	go func() {
		n := 5001
		defer func() { done <- n }()
		for ; ; n += 2 {
			if _, err := s.app.Exec(t.Context(), "INSERT INTO events (topic, customer, body) VALUES ('t', 'c' || $1 % 10, $1::text)", n); err != nil {
				t.Error(err)
				return
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	result := s.adopt(r)
	await.Until(t, "rows come by the trigger", func() bool {
		return tabletest.One[int](s, "SELECT count(*) FROM outbox") > int(result.Moved)+10
	})
	close(stop)
	last := <-done
	if result.Moved < 2500 {
		t.Errorf("moved %d rows", result.Moved)
	}
	s.is((last+1)/2, "SELECT count(DISTINCT payload::text) FROM outbox")
	s.is(0, "SELECT count(*) - count(DISTINCT message_id) FROM outbox")
	s.is(false, "SELECT bool_or(n < before) FROM (SELECT payload::text::bigint AS n, lag(payload::text::bigint) OVER (PARTITION BY ordering_key ORDER BY id) AS before FROM outbox) o") // the order of a key
	s.is(0, "SELECT count(*) FROM events WHERE sent_at IS NULL")
	if again := s.adopt(r); again.Moved != 0 || again.Attached {
		t.Errorf("again: %+v", again)
	}
	s.is(2500, "SELECT count(*) FROM events")
}

// After an interruption each row is in exactly one table; a second adopt moves the rest.
func TestAnInterruptedMoveContinues(t *testing.T) {
	s := open(t, events)
	s.Exec(`INSERT INTO events (topic, body) SELECT 't', i FROM generate_series(1, 20000) i`)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	conn := tabletest.Connect(t, s.URL)
	go func() {
		_, err := adopt.Adopt(ctx, conn, s.request("", "events", eventMap, "all"))
		ended <- err
	}()
	await.Until(t, "a part is moved", func() bool { return tabletest.One[bool](s, "SELECT EXISTS (SELECT FROM outbox)") })
	cancel()
	if err := await.Receive(t, "the end", ended); err == nil {
		t.Fatal("the move was not interrupted")
	}
	s.is(20000, "SELECT (SELECT count(*) FROM outbox) + (SELECT count(*) FROM events)")
	s.adopt(s.request("", "events", eventMap, "all"))
	s.is("20000 20000", "SELECT count(DISTINCT payload::text) || ' ' || count(*) FROM outbox")
	s.wantEmpty("events")
}

func TestAPartitionedTableIsAdopted(t *testing.T) {
	s := open(t, `CREATE TABLE events (id int, at date, topic text, body text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)`,
		`CREATE TABLE events_old (topic text, body text, at date NOT NULL, id int NOT NULL)`,
		`ALTER TABLE events ATTACH PARTITION events_old FOR VALUES FROM ('2020-01-01') TO ('2026-01-01')`)
	s.Exec(`INSERT INTO events VALUES (1, '2025-01-01', 't', '1')`)
	s.adopt(s.request("", "events", "routing_key=topic;payload=body;created_at=at", "all"))
	s.Exec(`CREATE TABLE events_new PARTITION OF events FOR VALUES FROM ('2026-01-01') TO ('2030-01-01')`)
	s.insert(`INSERT INTO events VALUES (2, '2025-01-01', 't', '2')`, `INSERT INTO events VALUES (3, '2027-01-01', 't', '3')`)
	s.want(row{"body": "1"}, row{"body": "2"}, row{"body": "3"})
	s.wantEmpty("events")
	s.works(1)
}

// A table of jobs has messages of one kind; the others keep their worker.
func TestOnlySomeRowsAreMessages(t *testing.T) {
	s := open(t, `CREATE TABLE jobs (id bigserial PRIMARY KEY, kind text, args jsonb, done_at timestamptz)`)
	const jobs = `INSERT INTO jobs (kind, args) VALUES ('publish', '1'), ('mail', '2'), (NULL, '3'), ('publish', '4')`
	s.Exec(jobs)
	r := s.request("", "jobs", "routing_key=kind;payload=args", "done_at IS NULL -- not done")
	r.Only = "kind = 'publish' -- a comment"
	s.moves(2, r)
	s.insert(jobs)
	s.want(row{"body": "1"}, row{"body": "4"}, row{"body": "1"}, row{"body": "4"})
	s.is(4, "SELECT count(*) FROM jobs WHERE kind IS DISTINCT FROM 'publish'")
	s.works(1)
	command := "cdc-relay adopt --from public.jobs --set routing_key=kind --set payload=args --only " + problem.ShellWord(r.Only)
	s.fails(s.Conn, view(r), "a view cannot", command)
	if again := s.list()[0].Command; again != command {
		t.Errorf("check tells to repair it with %s, want %s", again, command)
	}
	// What the row is at COMMIT counts.
	s.Exec("GRANT UPDATE ON jobs TO " + s.role)
	const change = "UPDATE jobs SET kind = CASE kind WHEN 'mail' THEN 'publish' ELSE 'mail' END WHERE id > 90;"
	const insert = "BEGIN; INSERT INTO jobs (id, kind, args) VALUES (91, 'mail', '1'), (92, 'publish', '2');"
	s.insert(insert+"DELETE FROM jobs WHERE id > 90; COMMIT", insert+change+"COMMIT")
	s.want(row{"body": "2"}, row{"body": "1"})
	s.is("92 mail", "SELECT string_agg(id || ' ' || kind, ',') FROM jobs WHERE id > 90")
}

// A mistake in the condition is an error before anything changes. What fails for one row leaves it in the table: it
// must not end the application's transaction.
func TestAConditionThatFailsKeepsItsRows(t *testing.T) {
	s := open(t, `CREATE TABLE jobs (id bigserial PRIMARY KEY, kind text, args jsonb)`)
	r := s.request("", "jobs", "routing_key=kind;payload=args", "none")
	for _, condition := range []string{
		"kinds = 'a'", "kind =", "kind", "1", "kind = 'a'; DROP TABLE jobs", "true) OR (true", "true)--", "kind = 'a", "/* kind", "max(id) = 1", "generate_series(1, 2) = 1", "ctid IS NOT NULL",
		"jobs.kind = 'a'", "NEW.kind = 'a'", "routing_key = 'a'", "kind = $1", "kind = 'a' LIMIT 1", "no_function(kind)", "kind = 'a' UNION SELECT", "kind = '$cdc_relay$' AND kin = ''",
	} {
		r.Only = condition
		s.fails(s.Conn, r, "--only "+condition, "id, kind, args")
		s.is(0, "SELECT count(*) + (SELECT count(*) FROM pg_trigger WHERE tgname = 'cdc_relay_adopt') FROM pg_proc WHERE proname ~ '^outbox_from'")
	}
	for condition, sent := range map[string]int{
		"(args ->> 'n')::int > 1": 1, "NULL": 0, "kind IN (SELECT k.kind FROM public.jobs k WHERE k.id < 0)": 0, "random() < 2 -- all": 3, "true /* all */": 3,
		"kind = '$cdc_relay$' OR kind = '$a$'": 0, strings.Repeat("kind = 'a' OR ", 2000) + "kind = 'b'": 3, "s.kind = 'a'": 2,
	} {
		r.Only = condition
		s.adopt(r)
		s.insert(`INSERT INTO jobs (kind, args) VALUES ('a', '{"n": 2}'), ('b', '{"n": "x"}'), ('a', '[]')`)
		s.is(sent, "SELECT count(*) FROM outbox")
		s.is(3-sent, "SELECT count(*) FROM jobs")
		s.Exec("DELETE FROM outbox; DELETE FROM jobs")
	}
}

func TestALockedTableIsNamed(t *testing.T) {
	s := open(t, events)
	s.insert("SET application_name = 'billing'", "BEGIN", "INSERT INTO events (topic, body) VALUES ('t', '1')")
	s.fails(tabletest.Connect(t, s.URL), s.request("", "events", eventMap, ""),
		fmt.Sprintf("public.events is locked by Postgres process %d (%s, billing, idle in transaction, ", s.app.PgConn().PID(), s.role), "pg_terminate_backend")
	s.is(0, "SELECT count(*) FROM pg_proc WHERE proname LIKE 'outbox_from%'")
	s.insert("COMMIT")
	s.moves(1, s.request("", "events", eventMap, "all"))
}

func TestAdoptedTablesSurviveADump(t *testing.T) {
	s := open(t, events)
	s.adopt(s.request("", "events", eventMap, ""))
	dump, err := exec.CommandContext(t.Context(), "pg_dump", "--no-owner", "--no-privileges", s.URL).Output()
	if err != nil {
		t.Skip("pg_dump is missing, or of another version")
	}
	url := services.Database(t)
	tabletest.Psql(t, url, string(dump))
	conn := tabletest.Connect(t, url)
	other := shop{Tables: &tabletest.Tables{TB: t, Conn: conn}, app: conn, outbox: s.outbox}
	other.works(1)
	other.insert("INSERT INTO events (topic, body) VALUES ('t', '1')")
	other.want(row{"routing_key": "t", "body": "1"})
}

func TestTheScriptForPsqlAdoptsTheTable(t *testing.T) {
	const name = `o'u"t$body$ `
	s := open(t, `CREATE SCHEMA "s'$body$"`, `CREATE TABLE "s'$body$"."e""v" ("i""d" serial PRIMARY KEY, "to'pic" text, "$body$" text)`)
	s.outbox = outbox.Table{Schema: "public", Name: name}
	_, _, err := migrations.Up(t.Context(), s.Conn, s.outbox)
	must(t, err)
	s.Exec(`INSERT INTO "s'$body$"."e""v" ("to'pic", "$body$") SELECT 't', i FROM generate_series(1, 2500) i`)
	r := adopt.Request{Outbox: s.outbox, From: outbox.Table{Schema: "s'$body$", Name: `e"v`}, Set: []string{`routing_key="to'pic"||'$body$'`, `payload="$body$"`, `message_id="i""d"`}, Waiting: "all"}
	script, err := adopt.SQL(t.Context(), s.Conn, r)
	must(t, err)
	for range 2 {
		tabletest.Psql(t, s.URL, script)
	}
	s.Exec(`INSERT INTO "s'$body$"."e""v" ("to'pic", "$body$") VALUES ('t', 'x')`)
	if got := tabletest.One[string](s, "SELECT count(*) || ' ' || max(routing_key) || ' ' || encode(max(payload_bytes::text)::bytea, 'escape') FROM "+s.outbox.SQL()); !strings.HasPrefix(got, "2501 t$body$ ") {
		t.Errorf("got %s", got)
	}
	a, err := adopt.Find(t.Context(), s.Conn, s.outbox, nil)
	if err != nil || !works(a) || a.Table != r.From {
		t.Fatalf("got %+v, %v", a, err)
	}
	tabletest.Psql(t, s.URL, a.UndoSQL())
	s.works(0)
}

// Several may adopt a table at once, such as the jobs of a deployment.
func TestAConcurrentAdoptWaits(t *testing.T) {
	s := open(t, events)
	s.Exec("INSERT INTO events (topic, body) SELECT 't', i FROM generate_series(1, 3000) i")
	conns := make([]*pgx.Conn, 8)
	for i := range conns {
		conns[i] = tabletest.Connect(t, s.URL)
	}
	var group sync.WaitGroup
	for _, conn := range conns {
		group.Go(func() {
			if _, err := adopt.Adopt(t.Context(), conn, s.request("", "events", eventMap, "all")); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	s.is(6000, "SELECT count(DISTINCT payload::text) + count(*) FROM outbox")
	s.wantEmpty("events")
}

// The names of two tables must not give one function: its conversion would be that of the last one.
func TestTablesOfSeveralSchemasHaveTheirOwnFunctions(t *testing.T) {
	s := open(t, "CREATE TABLE billing_events (id int PRIMARY KEY, topic text, body text)", "CREATE SCHEMA billing; CREATE TABLE billing.events (no int PRIMARY KEY, kind text, doc text)",
		"CREATE SCHEMA a; CREATE SCHEMA a_b; CREATE TABLE a.b_c (k int PRIMARY KEY, x text)",
		"CREATE TABLE a_b.c (l int PRIMARY KEY, y text)")
	for from, mapping := range map[string]string{
		"billing_events": "routing_key=topic;payload=body", "billing.events": "routing_key=kind;payload=doc", "a.b_c": "routing_key=x;payload=x", "a_b.c": "routing_key=y;payload=y",
	} {
		s.adopt(s.request("", from, mapping, ""))
	}
	s.Exec("INSERT INTO billing_events VALUES (1, 't', '1'); INSERT INTO billing.events VALUES (1, 'k', '2'); INSERT INTO a.b_c VALUES (1, '3'); INSERT INTO a_b.c VALUES (1, '4')")
	s.want(row{"routing_key": "t", "body": "1"}, row{"routing_key": "k", "body": "2"}, row{"body": "3"}, row{"body": "4"})
	s.works(4)
	if again := s.adopt(s.request("", "a.b_c", "routing_key=x;payload=x", "")); again.Attached {
		t.Error("a.b_c was adopted twice")
	}
}

// Covers everything that can happen to a trigger. Check reads it.
func TestListReportsTheStateOfEachTrigger(t *testing.T) {
	s := open(t, events)
	r := s.request("", "events", eventMap, "all")
	s.adopt(r)
	// after runs SQL, and compares works, exists, has its trigger, which fires; lost columns of the key, and others.
	after := func(sql, want string) (a adopt.Adopted) {
		t.Helper()
		s.Exec(sql)
		a = s.list()[0]
		if got := fmt.Sprint(works(a), a.Exists, a.Trigger, a.Enabled, a.LostKey, a.Missing); got != want {
			t.Errorf("%s: got %s, want %s: %+v", sql, got, want, a)
		}
		return a
	}
	const allWell = "true true true true [] []"
	if a := after("", allWell); a.Command != "cdc-relay adopt --from public.events --set "+strings.ReplaceAll(eventMap, ";", " --set ") || a.Table != r.From {
		t.Errorf("got %+v", a)
	}
	after("ALTER TABLE events DISABLE TRIGGER ALL", "false true true false [] []")
	s.adopt(r)
	after("", allWell)
	after("DROP TRIGGER cdc_relay_adopt ON events", "false true false false [] []")
	s.insert("INSERT INTO events (topic, body) VALUES ('t', '1')")
	s.moves(1, r)
	after("", allWell)
	a := after("ALTER TABLE events DROP COLUMN customer", "false true true true [] [customer]")
	if a.Obstacle == nil || !strings.Contains(a.Obstacle.Error(), `column "customer" does not exist`) {
		t.Errorf("without a column: %+v", a)
	}
	s.insert("INSERT INTO events (topic, body) VALUES ('t', '2')") // it becomes a dead letter, without an error
	after("DROP TABLE events", "false false false false [] []")
	after(events, "false true false false [] []")
}

// Some layouts read a column if the table has it, without a word in --set.
func TestAMissingOptionalColumnIsReported(t *testing.T) {
	s := open(t, outboxevent)
	s.adopt(s.request(adopt.Debezium, "outboxevent", "", ""))
	s.Exec("ALTER TABLE outboxevent DROP tracingspancontext")
	if all := s.list(); len(all) != 1 || fmt.Sprint(all[0].Missing) != "[tracingspancontext]" {
		t.Errorf("got %+v", all)
	}
	s.insert("INSERT INTO outboxevent (id, aggregatetype, aggregateid, type) VALUES ('" + first + "', 'Order', '42', 'T')")
	s.want(row{"headers": `cdc-relay adopt: record "r" has no field "tracingspancontext"`})
}

func TestAViewReplacesTheTable(t *testing.T) {
	s := open(t, outboxevent, `CREATE TABLE events (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, topic text DEFAULT 'usual', body text)`)
	s.Exec("GRANT INSERT, SELECT ON events TO " + s.role)
	s.Exec("INSERT INTO events (body) VALUES ('1')")
	s.adopt(view(s.request("", "events", "routing_key=topic;payload=body;message_id=id", "all")))
	s.insert("INSERT INTO events (body) VALUES ('2')")
	s.returning(3, "INSERT INTO events (topic, body) VALUES ('other', '3') RETURNING id")
	s.want(row{"routing_key": "usual", "body": "1"}, row{"routing_key": "usual", "body": "2"}, row{"routing_key": "other", "body": "3"})
	s.wantEmpty("events")
	s.works(1)
	s.undo("events")
	s.insert("INSERT INTO events (body) VALUES ('4')")
	s.is(1, "SELECT count(*) FROM events WHERE id = 4")
	s.want()
}

// Defaults name a sequence and a type of the schema public, which the search_path of the statements leaves out.
func TestAViewHasTheDefaultsOfItsTable(t *testing.T) {
	s := open(t, `CREATE TYPE state AS ENUM ('old', 'new')`, `CREATE TABLE events (id bigserial PRIMARY KEY, topic text DEFAULT 'usual', body text, st state DEFAULT 'new')`)
	s.Exec("INSERT INTO events (body, st) VALUES ('0', 'old'), ('1', 'new')")
	r := s.request("", "events", "routing_key=topic;payload=body;headers.st=st", "st = 'new'::state")
	r.View = true
	for range 2 { // as the session's search_path must stay
		if _, err := adopt.SQL(t.Context(), s.Conn, r); err == nil || !strings.Contains(err.Error(), `type "state" does not exist`) || !strings.Contains(problem.Hint(err), "with their schema") {
			t.Errorf("got %v (%s)", err, problem.Hint(err))
		}
	}
	r.Waiting = "st = 'new'::public.state"
	s.adopt(r)
	s.insert("INSERT INTO events (body) VALUES ('2')")
	s.want(row{"routing_key": "usual", "body": "1", "headers": "map[st:new]"}, row{"routing_key": "usual", "body": "2", "headers": "map[st:new]"})
	s.is(4, "SELECT nextval('events_id_seq')")
}

func TestAViewHasTheGrantsOfItsTable(t *testing.T) {
	s := open(t)
	s.Exec(`CREATE TABLE events (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, topic text, "B""ody" text)`)
	s.Exec(`GRANT INSERT (topic, "B""ody"), SELECT (id) ON events TO ` + s.role + " WITH GRANT OPTION; GRANT SELECT (topic) ON events TO PUBLIC; GRANT DELETE ON events TO " + s.role)
	grants := func() string {
		return tabletest.One[string](s, `SELECT coalesce(string_agg(format('%s %s %s %s', grantee, privilege_type, column_name, is_grantable), ', ' ORDER BY grantee, privilege_type, column_name), '')
			FROM information_schema.column_privileges WHERE table_name = 'events' AND grantee IN ($1, 'PUBLIC')`, s.role) +
			tabletest.One[string](s, `SELECT string_agg(privilege_type, ',') FROM information_schema.table_privileges WHERE table_name = 'events' AND grantee = $1`, s.role)
	}
	before := grants()
	s.adopt(view(s.request("", "events", `routing_key=topic;payload="B""ody"`, "")))
	if after := grants(); after != before {
		t.Errorf("the view has %s, want %s", after, before)
	}
	s.returning(1, `INSERT INTO events (topic, "B""ody") VALUES ('t', '1') RETURNING id`)
	s.want(row{"routing_key": "t", "body": "1"})
}

// The view is dropped, but its table was renamed: undo gives it back its name.
func TestUndoRestoresTheTableOfADroppedView(t *testing.T) {
	s := open(t, events, simplest)
	s.Exec("INSERT INTO events (topic, body) VALUES ('t', '1')")
	s.adopt(view(s.request("", "events", eventMap, "none")))
	s.Exec("DROP VIEW events")
	s.undo("events")
	s.is(1, "SELECT count(*) FROM events")
	s.insert("INSERT INTO events (topic, body) VALUES ('t', '2')")
	s.want()
	s.works(0)

	s.adopt(view(s.request(adopt.Debezium, "outboxevent", "", "")))
	s.Exec("DROP TABLE outboxevent_adopted CASCADE")
	s.undo("outboxevent")
	s.works(0)
}

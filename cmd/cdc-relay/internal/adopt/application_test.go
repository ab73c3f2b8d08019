package adopt_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/adopt"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// The application's results stay the same, and no body makes its transaction fail.
func TestTheApplicationNeedsNoChange(t *testing.T) {
	s := open(t, simplest)
	s.adopt(s.request(adopt.Debezium, "outboxevent", "routing_key=type", ""))
	values := func(id string) string { return "('" + id + "', 'Order', '42', 'OrderCreated', '{\"n\": 1}')" }
	s.returning(first, "INSERT INTO outboxevent VALUES "+values(first)+" RETURNING id::text")
	s.want(row{"message_id": first, "routing_key": "OrderCreated"})

	tag, err := s.app.Exec(t.Context(), "INSERT INTO outboxevent VALUES "+values(first)+", "+values(second)+", "+values(first)+" ON CONFLICT DO NOTHING")
	if err != nil || tag.RowsAffected() != 2 {
		t.Errorf("ON CONFLICT: %d rows, %v", tag.RowsAffected(), err)
	}
	s.want(row{"message_id": first}, row{"message_id": second})

	err = pgx.BeginFunc(t.Context(), s.app, func(tx pgx.Tx) error { // as Debezium's extension for Quarkus does
		if _, err := tx.Exec(t.Context(), "INSERT INTO outboxevent VALUES "+values(first)); err != nil {
			return err
		}
		tag, err := tx.Exec(t.Context(), "DELETE FROM outboxevent WHERE id = $1", first)
		if tag.RowsAffected() != 1 {
			t.Errorf("the application deleted %d rows", tag.RowsAffected())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	s.want(row{"message_id": first})

	s.insert("BEGIN; INSERT INTO outboxevent VALUES " + values(first) + "; ROLLBACK")
	s.want()
	_, err = s.app.CopyFrom(t.Context(), pgx.Identifier{"outboxevent"}, []string{"id", "aggregatetype", "aggregateid", "type", "payload"},
		pgx.CopyFromRows([][]any{{first, "Order", "42", "T", `{}`}, {second, "Order", "42", "T", nil}}))
	if err != nil {
		t.Error(err)
	}
	s.want(row{"message_id": first}, row{"message_id": second, "body": "bytes:"})
	s.wantEmpty("outboxevent")
}

// A message has the state of its row at COMMIT, also if the application changed the row after it inserted it.
func TestTheStateAtCommitIsSent(t *testing.T) {
	s := open(t, `CREATE TABLE events (id int, at date DEFAULT '2026-01-01', topic text, body text, prio text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)`,
		`CREATE TABLE events_now (body text, prio text, topic text, at date NOT NULL, id int NOT NULL)`,
		`ALTER TABLE events ATTACH PARTITION events_now FOR VALUES FROM ('2026-01-01') TO ('2027-01-01')`, outboxevent)
	s.Exec("GRANT UPDATE ON events, outboxevent TO " + s.role)
	s.adopt(s.request("", "events", "routing_key=topic;payload=body;properties.priority=prio", ""))
	s.adopt(s.request(adopt.Debezium, "outboxevent", "", ""))
	const upsert = " ON CONFLICT (id, at) DO UPDATE SET body = excluded.body"
	s.insert(
		"BEGIN; INSERT INTO events (id, topic, body) VALUES (1, 't', '{\"total\": 0}'), (2, 't', '2'); UPDATE events SET body = '{\"total\": 99}' WHERE id = 1; COMMIT",
		"BEGIN; INSERT INTO events (id, topic, body) VALUES (1, 't', '1')"+upsert+"; INSERT INTO events (id, topic, body) VALUES (1, 't', '11')"+upsert+"; COMMIT",
		"BEGIN; INSERT INTO events (id, topic, body) VALUES (1, 't', '1'); SAVEPOINT a; UPDATE events SET body = '2'; ROLLBACK TO a; COMMIT",
		"BEGIN; INSERT INTO events (id, topic, body) VALUES (1, 't', '1'); DELETE FROM events; COMMIT",
		"BEGIN; INSERT INTO events (id, topic, body) VALUES (1, 't', '1'); UPDATE events SET prio = 'high'; COMMIT", // a dead letter
		"BEGIN; INSERT INTO outboxevent VALUES ('"+first+"', 'Order', '42', 'T', now(), '1'); UPDATE outboxevent SET payload = '2'; COMMIT")
	s.want(row{"body": `{"total": 99}`}, row{"body": "2"}, row{"body": "11"}, row{"body": "1"}, row{"body": "1"},
		row{"body": `{"id":1,"at":"2026-01-01","topic":"t","body":"1","prio":"high"}`}, row{"message_id": first, "body": "2"})
	s.wantEmpty("events", "outboxevent")
}

// A session keeps the plan of the function, also if the table was small then and has many dead rows now.
func TestARowIsFoundByItsKey(t *testing.T) {
	s := open(t, events)
	s.adopt(s.request("", "events", eventMap, ""))
	s.Exec("VACUUM ANALYZE events")
	s.insert("BEGIN", "INSERT INTO events (topic, body) SELECT 't', i FROM generate_series(1, 20) i", "SET CONSTRAINTS ALL IMMEDIATE")
	s.returning(0, "SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relname = 'events'")
	s.insert("COMMIT")
	s.wantEmpty("events")
}

// Two transactions that only INSERT have nothing in common.
func TestSerializableTransactionsMayInsertAtOnce(t *testing.T) {
	s := open(t, events, simplest, `CREATE TABLE days (id bigserial, at date, topic text, body text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
		CREATE TABLE day1 PARTITION OF days FOR VALUES FROM ('2026-01-01') TO ('2026-01-02'); CREATE TABLE day2 PARTITION OF days FOR VALUES FROM ('2026-01-02') TO ('2026-01-03')`)
	s.adopt(s.request("", "events", eventMap, ""))
	s.adopt(s.request(adopt.Debezium, "outboxevent", "", ""))
	s.adopt(s.request("", "days", "routing_key=topic;payload=body", ""))
	// Each one inserts after the trigger of the one before has run. The last one commits first.
	again := func() *shop { return &shop{Tables: s.Tables, app: tabletest.Connect(t, s.app.Config().ConnString())} }
	sessions := []*shop{s, again(), again()}
	for _, session := range sessions {
		session.insert("BEGIN ISOLATION LEVEL SERIALIZABLE", "SELECT", "INSERT INTO events (topic, body) SELECT 't', i FROM generate_series(1, 3) i",
			"INSERT INTO outboxevent SELECT gen_random_uuid(), 'Order', '42', 'T', to_jsonb(i) FROM generate_series(4, 6) i",
			"INSERT INTO days (at, topic, body) VALUES ('2026-01-01', 't', '7'), ('2026-01-02', 't', '8')", "SET CONSTRAINTS ALL IMMEDIATE")
	}
	for _, session := range []*shop{sessions[2], sessions[0], sessions[1]} {
		session.insert("COMMIT")
	}
	s.is(strings.TrimSpace(strings.Repeat("1 2 3 4 5 6 7 8 ", 3)), "SELECT string_agg(payload::text, ' ' ORDER BY id) FROM outbox")
	s.wantEmpty("events", "outboxevent", "days")
}

// Sessions of the application stay open while a migration changes the types of columns.
func TestColumnsMayChangeTheirTypes(t *testing.T) {
	s := open(t, `CREATE TABLE events (id int PRIMARY KEY, topic varchar(20), body json, n int)`)
	s.adopt(s.request("", "events", "routing_key=topic;payload=body;headers.n=n", ""))
	s.insert(`INSERT INTO events VALUES (1, 't', '{"a":  1}', 1)`)
	s.Exec("ALTER TABLE events ALTER id TYPE bigint, ALTER topic TYPE text, ALTER n TYPE bigint")
	s.insert(`INSERT INTO events VALUES (2, 't', '{"a":  2}', 2), (3, 't', '{"a":  3}', 3)`)
	s.Exec("ALTER TABLE events ALTER body TYPE jsonb, ADD extra text DEFAULT 'x'")
	s.insert(`INSERT INTO events VALUES (4, 't', '{"a":  4}', 4)`)
	s.want(row{"routing_key": "t", "body": `{"a":  1}`, "headers": "map[n:1]"}, row{"routing_key": "t", "body": `{"a":  2}`, "headers": "map[n:2]"},
		row{"routing_key": "t", "body": `{"a":  3}`, "headers": "map[n:3]"}, row{"routing_key": "t", "body": `{"a": 4}`, "headers": "map[n:4]"})
	s.wantEmpty("events")
}

// A type of an extension may have its operators outside of pg_catalog.
func TestAPrimaryKeyMayHaveAnExtensionType(t *testing.T) {
	s := open(t)
	s.Exec(`CREATE SCHEMA "Ext"; CREATE EXTENSION ltree SCHEMA "Ext"; CREATE DOMAIN place AS "Ext".ltree`)
	s.Exec(`CREATE TABLE events (id int, path "Ext".ltree, at place, name name, body text, PRIMARY KEY (path, id, at, name))`)
	s.Exec("GRANT INSERT ON events TO " + s.role)
	s.Exec("INSERT INTO events VALUES (1, 'a.b', 'c', 'd', '1')")
	s.adopt(s.request("", "events", "routing_key=path;payload=body", "all"))
	s.insert("INSERT INTO events VALUES (2, 'a.b', 'c', 'd', '2'), (3, 'a.b', 'c', 'd', '3')")
	s.want(row{"routing_key": "a.b", "body": "1"}, row{"body": "2"}, row{"body": "3"})
	s.wantEmpty("events")
}

// It runs with the rights of the outbox's owner, which nobody may use otherwise.
func TestTheFunctionCannotBeUsedToGainRights(t *testing.T) {
	s := open(t, events)
	s.adopt(s.request("", "events", eventMap, ""))
	s.Exec("GRANT CREATE ON SCHEMA public TO " + s.role)
	s.insert("CREATE TABLE mine (LIKE events)")
	if _, err := s.app.Exec(t.Context(), "CREATE TRIGGER t AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION outbox_from_events()"); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("got %v", err)
	}
	s.Exec("CREATE SCHEMA evil AUTHORIZATION " + s.role)
	s.insert("SET search_path = evil, pg_temp, public", "CREATE FUNCTION evil.md5(text) RETURNS text LANGUAGE sql AS 'SELECT NULL::text'",
		"CREATE TABLE evil.outbox (id bigint)", "INSERT INTO public.events (topic, customer, body) VALUES ('t', repeat('x', 3000), '1')")
	s.want(row{"ordering_key": tabletest.One[string](s, "SELECT md5(repeat('x', 3000))")})
}

// The function deletes with the rights of the outbox's owner, and so would run what others hang on the table.
func TestATableThatOthersCanHangCodeOnIsNotAdopted(t *testing.T) {
	s := open(t)
	s.Exec("GRANT CREATE ON SCHEMA public TO " + s.role)
	s.insert("CREATE TYPE json AS ENUM ('1')", "CREATE FUNCTION cast_json(public.json) RETURNS pg_catalog.json LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION $$it ran$$; END'",
		"CREATE CAST (public.json AS pg_catalog.json) WITH FUNCTION cast_json", "CREATE TABLE owned (id int PRIMARY KEY, topic text, body text)")
	const columns = " (id int PRIMARY KEY, topic text, body text); INSERT INTO "
	s.Exec("CREATE TABLE triggers" + columns + "triggers VALUES (1, 't', '1'); GRANT TRIGGER ON triggers TO " + s.role)
	s.Exec("CREATE TABLE refers" + columns + "refers VALUES (1, 't', '1'); GRANT REFERENCES (id) ON refers TO PUBLIC")
	s.Exec("CREATE TABLE parts (id int PRIMARY KEY, topic text, body text) PARTITION BY RANGE (id); CREATE TABLE part PARTITION OF parts DEFAULT; GRANT ALL ON part TO " + s.role)
	s.Exec("CREATE TABLE typed (id int PRIMARY KEY, topic text, body public.json); INSERT INTO typed VALUES (1, 't', '1')")
	for table, says := range map[string]string{
		"owned": "table public.owned belongs to role " + s.role, "triggers": "role " + s.role + " has TRIGGER on table public.triggers",
		"refers": `role "PUBLIC" has REFERENCES on table public.refers`, "typed": "table public.typed uses type public.json of role " + s.role,
		"parts": "role " + s.role + " has REFERENCES on table public.part",
	} {
		r := s.request("", table, "routing_key=topic;payload=body", "all")
		_, err := adopt.Adopt(t.Context(), tabletest.Connect(t, s.URL), r)
		_, printing := adopt.SQL(t.Context(), tabletest.Connect(t, s.URL), r)
		for _, err := range []error{err, printing} {
			if !errors.Is(err, migrations.ErrOwner) || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v, want %s", table, err, says)
			}
		}
		if _, cure, is := strings.Cut(problem.Hint(err), "REVOKE"); is {
			s.Exec("REVOKE" + cure)
			s.adopt(r)
		}
	}
	r := s.request("", "owned", "routing_key=topic;payload=body", "none")
	r.Owner = s.role // on purpose
	s.adopt(r)
	s.Exec("DELETE FROM outbox")
	s.insert("INSERT INTO owned VALUES (1, 't', '2')")
	s.want(row{"body": "2"})
	s.wantEmpty("owned", "triggers", "refers")
	s.Exec("CREATE SCHEMA ours CREATE TABLE named (id int PRIMARY KEY, topic text, body text); CREATE TYPE ours.json AS ENUM ('a b'); ALTER TABLE ours.named ALTER body TYPE ours.json USING NULL")
	s.adopt(s.request("", "ours.named", "routing_key=topic;payload=body", "none")) // a type is no built-in one by its name
	s.Exec("INSERT INTO ours.named VALUES (1, 't', 'a b')")
	s.want(row{"body": "bytes:a b"})
	s.Exec("DROP OWNED BY " + s.role + " CASCADE")
}

// A role becomes able to do so later. Its code never runs as the owner of the outbox, and no message is lost.
func TestCodeThatIsHungOnAnAdoptedTableLaterDoesNotRun(t *testing.T) {
	s := open(t, events)
	s.Exec("GRANT CREATE ON SCHEMA public TO " + s.role)
	s.insert("CREATE FUNCTION grab() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN "+
		"EXECUTE 'ALTER ROLE "+s.role+" SUPERUSER'; END IF; RETURN OLD; END $$", "CREATE TABLE mine (id bigint)")
	s.adopt(s.request("", "events", eventMap, ""))
	insert := func(stays int, obstacle string) {
		t.Helper()
		s.insert("INSERT INTO events (topic, customer, body) VALUES ('t', 'c', '1')")
		s.want(row{"body": "1"})
		s.is(stays, "SELECT count(*) FROM events")
		s.is(false, "SELECT rolsuper FROM pg_roles WHERE rolname = $1", s.role)
		s.Exec("ALTER TABLE events DISABLE TRIGGER ALL; DELETE FROM events; ALTER TABLE events ENABLE TRIGGER ALL")
		all, err := adopt.List(t.Context(), s.Conn, s.outbox)
		if err != nil || (obstacle == "") != (all[0].Obstacle == nil) || obstacle != "" && !strings.Contains(all[0].Obstacle.Error(), obstacle) {
			t.Errorf("check: %v, %v, want %s", all[0].Obstacle, err, obstacle)
		}
	}
	insert(0, "")
	s.Exec("GRANT TRIGGER ON events TO " + s.role)
	old := tabletest.Connect(t, s.app.Config().ConnString()) // it does not see the trigger, which fires all the same
	_, err := old.Exec(t.Context(), "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM events")
	must(t, err)
	s.insert("CREATE TRIGGER grab BEFORE DELETE ON events FOR EACH ROW EXECUTE FUNCTION grab()")
	_, err = old.Exec(t.Context(), "INSERT INTO events (topic, customer, body) VALUES ('t', 'c', '1'); COMMIT")
	must(t, err)
	s.want(row{"body": "1"})
	s.Exec("ALTER TABLE events DISABLE TRIGGER ALL; DELETE FROM events; ALTER TABLE events ENABLE TRIGGER ALL")
	insert(1, "trigger grab of public.events uses function public.grab() of role "+s.role)
	s.Exec("REVOKE TRIGGER ON events FROM " + s.role)
	insert(1, "trigger grab of public.events uses")
	s.Exec("DROP TRIGGER grab ON events; GRANT REFERENCES ON events TO " + s.role)
	insert(1, "role "+s.role+" has REFERENCES on table public.events")
	s.insert("ALTER TABLE mine ADD FOREIGN KEY (id) REFERENCES events ON DELETE CASCADE", "CREATE TRIGGER grab AFTER DELETE ON mine FOR EACH ROW EXECUTE FUNCTION grab()")
	s.Exec("REVOKE REFERENCES ON events FROM " + s.role)
	insert(1, "constraint mine_id_fkey of public.mine uses table public.mine of role")
	s.insert("DROP TABLE mine")
	insert(0, "")
	s.Exec("ALTER TABLE events OWNER TO " + s.role)
	if _, err := s.app.Exec(t.Context(), "INSERT INTO events (topic, customer, body) VALUES ('t', 'c', '1')"); err == nil || !strings.Contains(err.Error(), "is not trusted to run code as role postgres") {
		t.Errorf("the table has another owner, and the INSERT got %v", err)
	}
	s.Exec("ALTER TABLE events OWNER TO postgres; GRANT INSERT ON events TO " + s.role + "; GRANT USAGE ON SEQUENCE events_id_seq TO " + s.role)
	insert(0, "")
}

// A trigger or rule that prevents a DELETE would fail every INSERT of the application at COMMIT.
func TestATableThatForbidsDeletesNeedsAView(t *testing.T) {
	s := open(t, events, simplest, `CREATE TABLE ruled (id int PRIMARY KEY, topic text, body text)`,
		`CREATE TABLE days (id int PRIMARY KEY, topic text, body text) PARTITION BY LIST (id); CREATE TABLE day1 PARTITION OF days FOR VALUES IN (1)`)
	s.Exec(`CREATE FUNCTION forbid() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'append only'; END $$`)
	s.Exec(`CREATE TRIGGER "No delete" BEFORE UPDATE OR DELETE ON events FOR EACH ROW EXECUTE FUNCTION forbid()`)
	s.Exec(`CREATE TRIGGER forbid BEFORE DELETE ON outboxevent EXECUTE FUNCTION forbid()`)
	s.Exec(`CREATE TRIGGER forbid BEFORE DELETE ON day1 FOR EACH ROW EXECUTE FUNCTION forbid()`)
	s.Exec(`CREATE RULE ignore AS ON DELETE TO ruled DO INSTEAD NOTHING`)
	s.Exec(`CREATE TABLE logged (id int PRIMARY KEY, topic text, body text)`)
	s.Exec(`CREATE TRIGGER log AFTER DELETE ON logged FOR EACH ROW EXECUTE FUNCTION forbid()`)
	const mapping = "routing_key=topic;payload=body"
	s.fails(s.Conn, s.request("", "events", mapping, ""), `table public.events has trigger "No delete", which can prevent a DELETE`, "--view")
	s.fails(s.Conn, s.request(adopt.Debezium, "outboxevent", "", ""), "has trigger forbid,", "--view")
	s.fails(s.Conn, s.request("", "days", mapping, ""), "has trigger forbid of public.day1,", "--view")
	s.fails(s.Conn, s.request("", "logged", mapping, ""), "has trigger log,", "--view")
	s.fails(s.Conn, s.request("", "ruled", mapping, ""), "has rule ignore,", "--view")
	s.adopt(view(s.request("", "events", mapping, "")))
	s.insert("INSERT INTO events (topic, body) VALUES ('t', '1')")
	s.Exec("ALTER TABLE outboxevent DISABLE TRIGGER forbid")
	s.adopt(s.request(adopt.Debezium, "outboxevent", "", ""))
	s.insert("INSERT INTO outboxevent VALUES ('" + first + "', 'Order', '42', 'T', '2')")
	s.want(row{"body": "1"}, row{"body": "2"})
}

// The function would not see rows that row security hides from the outbox's owner, and leave them in the table.
func TestATableWithHiddenRowsIsRejected(t *testing.T) {
	s := open(t, events)
	s.Exec("ALTER TABLE events ENABLE ROW LEVEL SECURITY")
	r := s.request("", "events", eventMap, "")
	s.adopt(r) // as a superuser
	s.undo("events")
	s.Exec("ALTER TABLE outbox OWNER TO " + s.role)
	refused := func(as *pgx.Conn) {
		t.Helper()
		s.fails(as, r, "row security of table public.events hides rows from role", `ALTER ROLE "`+s.role+`" BYPASSRLS;`)
	}
	refused(s.Conn)
	s.Exec("GRANT CREATE ON SCHEMA public TO " + s.role + "; ALTER TABLE events FORCE ROW LEVEL SECURITY; ALTER TABLE events OWNER TO " + s.role)
	refused(s.Conn)
	refused(s.app)
	s.Exec("ALTER TABLE events NO FORCE ROW LEVEL SECURITY")
	_, err := adopt.Adopt(t.Context(), tabletest.Connect(t, s.app.Config().ConnString()), r)
	must(t, err)
	s.insert("INSERT INTO events (topic, body) VALUES ('t', '1')")
	s.want(row{"body": "1"})
	s.wantEmpty("events")
}

func TestObstaclesAreReportedBeforeAnyChange(t *testing.T) {
	s := open(t, events, simplest, "CREATE TABLE nokey (a text)", "CREATE TABLE years (id int PRIMARY KEY, body text); CREATE TABLE year1 () INHERITS (years)", "CREATE TABLE parent (id int PRIMARY KEY, body text)", "CREATE TABLE child (p int REFERENCES parent)",
		"CREATE VIEW v AS SELECT 1 AS a")
	s.Exec("CREATE TABLE foreign_owner (id int PRIMARY KEY, body text); ALTER TABLE outbox OWNER TO " + s.role)
	const body = "routing_key='k';payload=body"
	s.fails(s.Conn, s.request(adopt.Debezium, "nowhere", "", ""), "table public.nowhere does not exist", "")
	s.fails(s.Conn, s.request("", "nokey", "routing_key=a;payload=a", ""), "has no primary key", "")
	s.fails(s.Conn, s.request("", "parent", body, ""), "is the target of foreign key child_p_fkey of public.child", "")
	s.fails(s.Conn, s.request("", "years", body, ""), "table public.years has child tables public.year1, and their rows would stay there", "")
	s.fails(s.Conn, s.request("", "v", body, ""), "is a view", "")
	s.fails(s.Conn, s.request("", "outbox", body, ""), "is the outbox itself", "")
	s.fails(s.Conn, s.request("", "foreign_owner", body, ""), "may not read and delete rows of public.foreign_owner", "")
	s.fails(s.Conn, adopt.Request{Outbox: outbox.Table{Schema: "public", Name: "no"}, From: outbox.Table{Schema: "public", Name: "events"}}, "the outbox public.no does not exist", "")
	s.Exec("ALTER TABLE outbox OWNER TO CURRENT_USER")
	s.fails(s.Conn, s.request("", "events", "id=1", ""), "--set id: this is no column of the outbox to set", "headers.NAME")
	s.fails(s.Conn, s.request("", "events", "properties.ttl=1", ""), "--set properties.ttl", "content_type")
	s.fails(s.Conn, s.request("", "events", "routing_key=topic;payload=body;possible_duplicate=true", ""), "--set possible_duplicate", "")
	s.fails(s.Conn, s.request("", "events", "routing_key=topic;payload=lower(body", ""), "--set payload", "topic, customer")
	s.fails(s.Conn, s.request(adopt.Debezium, "events", "", ""), `--set routing_key on table public.events: ERROR: column "aggregatetype" does not exist`, "")
	s.fails(s.Conn, s.request("", "events", "routing_key=topic", ""), "nothing says what becomes the payload", "")
	s.fails(s.Conn, s.request("", "events", "routing_key=topic;payload=body;created_at=id", ""), "cannot cast type bigint to timestamp", "--set created_at= for none")
	s.fails(s.Conn, s.request(adopt.CeleryOutbox, "events", "", ""), "--set error on table", "")
	s.fails(s.Conn, s.request(adopt.CeleryOutbox, "events", "payload=body", ""), "does not exist", "")
	s.is(0, "SELECT count(*) FROM pg_proc WHERE proname ~ '^outbox_from'")
}

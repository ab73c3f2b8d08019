package adopt_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/adopt"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

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
	const mapping = "routing_key=topic,payload=body"
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
	if _, err := adopt.Adopt(t.Context(), tabletest.Connect(t, s.app.Config().ConnString()), r); err != nil {
		t.Fatal(err)
	}
	s.insert("INSERT INTO events (topic, body) VALUES ('t', '1')")
	s.want(row{"body": "1"})
	s.wantEmpty("events")
}

func TestObstaclesAreReportedBeforeAnyChange(t *testing.T) {
	s := open(t, events, simplest, "CREATE TABLE nokey (a text)", "CREATE TABLE years (id int PRIMARY KEY, body text); CREATE TABLE year1 () INHERITS (years)", "CREATE TABLE parent (id int PRIMARY KEY, body text)", "CREATE TABLE child (p int REFERENCES parent)",
		"CREATE VIEW v AS SELECT 1 AS a")
	s.Exec("CREATE TABLE foreign_owner (id int PRIMARY KEY, body text); ALTER TABLE outbox OWNER TO " + s.role)
	const body = "routing_key='k',payload=body"
	s.fails(s.Conn, s.request(adopt.Debezium, "nowhere", "", ""), "table public.nowhere does not exist", "")
	s.fails(s.Conn, s.request("", "nokey", "routing_key=a,payload=a", ""), "has no primary key", "")
	s.fails(s.Conn, s.request("", "parent", body, ""), "is the target of foreign key child_p_fkey of public.child", "")
	s.fails(s.Conn, s.request("", "years", body, ""), "table public.years has child tables public.year1, and their rows would stay there", "")
	s.fails(s.Conn, s.request("", "v", body, ""), "is a view", "")
	s.fails(s.Conn, s.request("", "outbox", body, ""), "is the outbox itself", "")
	s.fails(s.Conn, s.request("", "foreign_owner", body, ""), "may not read and delete rows of public.foreign_owner", "")
	s.fails(s.Conn, s.request("", "events", "payload", ""), "--map: ", "")
	s.fails(s.Conn, adopt.Request{Outbox: outbox.Table{Schema: "public", Name: "no"}, From: outbox.Table{Schema: "public", Name: "events"}}, "the outbox public.no does not exist", "")
	s.Exec("ALTER TABLE outbox OWNER TO CURRENT_USER")
	s.fails(s.Conn, s.request(adopt.Debezium, "events", "", ""), "table public.events has no column aggregatetype, for routing_key", "")
	s.fails(s.Conn, s.request("", "events", "routing_key=topic", ""), "nothing says what becomes the payload", "")
	s.fails(s.Conn, s.request("", "events", "routing_key=topic,payload=body,created_at=topic", ""), "created_at needs one column with date and time, and not topic text", "")
	s.fails(s.Conn, s.request(adopt.CeleryOutbox, "events", "", ""), "it is not that of django-celery-outbox", "")
	s.fails(s.Conn, s.request(adopt.CeleryOutbox, "events", "payload=body", ""), "has no column", "")
	s.is(0, "SELECT count(*) FROM pg_proc WHERE proname ~ '^outbox_from'")
}

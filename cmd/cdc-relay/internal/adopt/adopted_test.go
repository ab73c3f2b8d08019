package adopt_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/adopt"
)

// The names of two tables must not give one function: its conversion would be that of the last one.
func TestTablesOfSeveralSchemasHaveTheirOwnFunctions(t *testing.T) {
	s := open(t, "CREATE TABLE billing_events (id int PRIMARY KEY, topic text, body text)", "CREATE SCHEMA billing; CREATE TABLE billing.events (no int PRIMARY KEY, kind text, doc text)",
		"CREATE SCHEMA a; CREATE SCHEMA a_b; CREATE TABLE a.b_c (k int PRIMARY KEY, x text)",
		"CREATE TABLE a_b.c (l int PRIMARY KEY, y text)")
	for from, mapping := range map[string]string{
		"billing_events": "routing_key=topic,payload=body", "billing.events": "routing_key=kind,payload=doc", "a.b_c": "routing_key=x,payload=x", "a_b.c": "routing_key=y,payload=y",
	} {
		s.adopt(s.request("", from, mapping, ""))
	}
	s.Exec("INSERT INTO billing_events VALUES (1, 't', '1'); INSERT INTO billing.events VALUES (1, 'k', '2'); INSERT INTO a.b_c VALUES (1, '3'); INSERT INTO a_b.c VALUES (1, '4')")
	s.want(row{"routing_key": "t", "body": "1"}, row{"routing_key": "k", "body": "2"}, row{"body": "3"}, row{"body": "4"})
	s.works(4)
	if again := s.adopt(s.request("", "a.b_c", "routing_key=x,payload=x", "")); again.Attached {
		t.Error("a.b_c was adopted twice")
	}
}

func TestUndoRestoresTheTable(t *testing.T) {
	s := open(t, events)
	s.adopt(s.request("", "events", eventMap, ""))
	s.undo("events")
	s.insert("INSERT INTO events (topic, body) VALUES ('t', '1')")
	s.want()
	s.is(0, "SELECT count(*) FROM pg_proc WHERE proname ~ '^outbox_from'")
	s.moves(1, s.request("", "events", eventMap, "all"))
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
	const works = "true true true true [] []"
	if a := after("", works); a.Command != "cdc-relay adopt --from public.events --map "+eventMap || a.Table != r.From {
		t.Errorf("got %+v", a)
	}
	after("ALTER TABLE events DISABLE TRIGGER ALL", "false true true false [] []")
	s.adopt(r)
	after("", works)
	after("DROP TRIGGER cdc_relay_adopt ON events", "false true false false [] []")
	s.insert("INSERT INTO events (topic, body) VALUES ('t', '1')")
	s.moves(1, r)
	after("", works)
	a := after("ALTER TABLE events DROP COLUMN customer", "false true true true [] [customer]")
	if a.Obstacle == nil || !strings.Contains(a.Obstacle.Error(), "no column customer, for ordering_key") {
		t.Errorf("without a column: %+v", a)
	}
	s.insert("INSERT INTO events (topic, body) VALUES ('t', '2')") // it becomes a dead letter, without an error
	after("DROP TABLE events", "false false false false [] []")
	after(events, "false true false false [] []")
}

// Some layouts read a column if the table has it, without a word in --map.
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

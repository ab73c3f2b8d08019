package doctor_test

import (
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/adopt"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// A migration of the application can break the adoption long after it. The finding says what an INSERT does now, and the
// fix is what ends it.
func TestChangesOfAnAdoptedTableAreReported(t *testing.T) {
	t.Parallel()
	const forbid = `CREATE FUNCTION forbid() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'append only'; END $$; `
	for name, test := range map[string]struct {
		breaks string
		fails  bool
		words  []string
		with   string // in place of NEW_NAME or COLUMN in the fix
	}{
		"a DELETE trigger": {forbid + "CREATE TRIGGER forbid BEFORE DELETE ON events FOR EACH ROW EXECUTE FUNCTION forbid()", true, []string{"has trigger forbid, which can prevent a DELETE", "DISABLE TRIGGER forbid;"}, ""},
		"a DELETE rule":    {"CREATE RULE keep AS ON DELETE TO events DO INSTEAD NOTHING", true, []string{"has rule keep, which can prevent a DELETE", "DISABLE RULE keep;"}, ""},
		"a foreign key": {
			"CREATE TABLE child (event bigint REFERENCES events); CREATE TABLE other (event bigint REFERENCES events ON DELETE CASCADE); ", false,
			[]string{"is the target of foreign key child_event_fkey of public.child and foreign key other_event_fkey of public.other", "ALTER TABLE public.child DROP CONSTRAINT child_event_fkey;"},
			"",
		},
		"a child table":         {"CREATE TABLE later () INHERITS (events)", false, []string{"has child tables public.later", "NO INHERIT"}, ""},
		"row security":          {"ALTER TABLE events ENABLE ROW LEVEL SECURITY; ALTER TABLE events FORCE ROW LEVEL SECURITY", false, []string{"row security of table public.events hides rows", "BYPASSRLS;"}, ""},
		"a revoked grant":       {"ALTER TABLE events OWNER TO CURRENT_USER", true, []string{"may not read and delete rows of public.events", "GRANT SELECT, DELETE ON"}, ""},
		"no primary key":        {"ALTER TABLE events DROP CONSTRAINT events_pkey", false, []string{"has no primary key", "ADD PRIMARY KEY"}, "id"},
		"a renamed key":         {"ALTER TABLE events RENAME id TO nr", true, []string{`no longer has column id of its primary key: every INSERT into it fails`, "RENAME COLUMN"}, "nr"},
		"a renamed column":      {"ALTER TABLE events RENAME topic TO subject", false, []string{"no longer has column topic: its new rows become dead letters", "RENAME COLUMN", "# or adopt it again, and change --map"}, "subject"},
		"a renamed body":        {"ALTER TABLE events RENAME body TO data", false, []string{"no longer has column body: its new rows become dead letters"}, "data"},
		"a time that is a text": {"ALTER TABLE events ALTER due TYPE text", false, []string{"available_at needs one column with date and time, and not due text"}, "-"},
		"another primary key":   {"ALTER TABLE events DROP CONSTRAINT events_pkey, ADD PRIMARY KEY (id, topic)", false, []string{"has another primary key now", "--waiting none"}, "-"},
	} {
		t.Run(name, func(t *testing.T) {
			p := healthy(t, services.SharedPostgres(t))
			owner, _ := p.role("")
			p.exec("CREATE TABLE events (id bigserial PRIMARY KEY, topic text DEFAULT 't', body text DEFAULT '{}', due timestamptz)",
				"ALTER TABLE outbox OWNER TO "+owner, "ALTER TABLE events OWNER TO "+owner)
			r := adopt.Request{
				Outbox: p.Table, From: outbox.Table{Schema: "public", Name: "events"}, Waiting: "none",
				Map: "routing_key=topic,payload=body,available_at=due",
			}
			again := func() {
				if _, err := adopt.Adopt(t.Context(), connect(t, p.url), r); err != nil {
					t.Fatal(err)
				}
			}
			again()
			p.examine().want(doctor.OK, doctor.Tables, "adopted")
			p.exec(test.breaks)
			const insert = "INSERT INTO events DEFAULT VALUES"
			if _, err := p.conn.Exec(t.Context(), insert); (err != nil) != test.fails {
				t.Errorf("an INSERT ends with %v", err)
			}
			f := p.examine().want(doctor.Problem, doctor.Tables, "adopted", test.words...)
			for i, line := range f.Fix {
				f.Fix[i] = strings.NewReplacer("NEW_NAME", test.with, "(COLUMN)", "("+test.with+")").Replace(line)
			}
			switch test.with {
			case "-":
				p.exec("ALTER TABLE events ALTER due TYPE timestamptz USING NULL")
				again()
			default:
				p.fix(f)
			}
			p.exec(insert)
			p.examine().want(doctor.OK, doctor.Tables, "adopted")
		})
	}
}

package adopt_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/adopt"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func TestMain(m *testing.M) { services.Main(m) }

func must(t testing.TB, err error) { t.Helper(); services.Must(t, err) }

// shop is a database with an outbox, and a role that may only INSERT into the tables of the application.
type shop struct {
	*tabletest.Tables
	app    *pgx.Conn
	role   string
	outbox outbox.Table
}

func open(t *testing.T, tables ...string) *shop {
	t.Helper()
	s := &shop{Tables: tabletest.New(t), outbox: tabletest.Name()}
	for _, table := range tables {
		s.Exec(table)
	}
	role, address := s.Role("")
	s.role = role
	s.Exec("GRANT USAGE ON SCHEMA public TO " + s.role)
	s.Exec("DO $$ DECLARE t text; BEGIN FOR t IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename !~ '^outbox(_migrations|_dead_letter)?$' " +
		"LOOP EXECUTE format('GRANT SELECT, INSERT, DELETE ON %I TO " + s.role + "', t); END LOOP; END $$; GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO " + s.role)
	s.app = tabletest.Connect(t, address)
	return s
}

func (s *shop) insert(statements ...string) {
	s.Helper()
	for _, sql := range statements {
		if _, err := s.app.Exec(s.Context(), sql); err != nil {
			s.Fatalf("%s: %v", sql, err)
		}
	}
}

// request parses the table name as the command does.
func (s *shop) request(layout, from, mapping, waiting string) adopt.Request {
	s.Helper()
	table, err := outbox.ParseName(from)
	must(s, err)
	set := strings.FieldsFunc(mapping, func(r rune) bool { return r == ';' })
	return adopt.Request{Outbox: s.outbox, Layout: layout, From: table, Set: set, Waiting: waiting}
}

func (s *shop) adopt(r adopt.Request) adopt.Result {
	s.Helper()
	result, err := adopt.Adopt(s.Context(), tabletest.Connect(s, s.URL), r)
	if err != nil {
		s.Fatalf("adopt %s: %v (%s)", r.From, err, problem.Hint(err))
	}
	return result
}

// rows returns the messages as JSON, without random values.
func (s *shop) rows() []map[string]any {
	s.Helper()
	rows, _ := s.Conn.Query(s.Context(), `SELECT jsonb_strip_nulls(to_jsonb(o) - '{id,attempts,schema_version,payload,payload_bytes}'::text[])
		|| jsonb_build_object('body', coalesce(payload::text, 'bytes:' || encode(payload_bytes, 'escape'), 'none')) FROM outbox o ORDER BY id`)
	all, err := pgx.CollectRows(rows, pgx.RowTo[map[string]any])
	must(s, err)
	return all
}

// want compares these columns of the messages, and "body".
func (s *shop) want(wanted ...map[string]any) {
	s.Helper()
	got := s.rows()
	if len(got) != len(wanted) {
		s.Fatalf("%d messages, want %d: %v", len(got), len(wanted), got)
	}
	for i, w := range wanted {
		for column, v := range w {
			if fmt.Sprint(got[i][column]) != fmt.Sprint(v) {
				s.Errorf("message %d: %s is %v, want %v", i, column, got[i][column], v)
			}
		}
	}
	s.Exec("DELETE FROM outbox")
}

func (s *shop) wantEmpty(tables ...string) {
	s.Helper()
	for _, table := range tables {
		s.is(0, "SELECT count(*) FROM "+table)
	}
}

func (s *shop) is(want any, sql string, args ...any) {
	s.Helper()
	if got := tabletest.One[any](s, sql, args...); fmt.Sprint(got) != fmt.Sprint(want) {
		s.Errorf("%s: got %v, want %v", sql, got, want)
	}
}

func works(a adopt.Adopted) bool {
	return a.Exists && a.Trigger && a.Enabled && len(a.LostKey)+len(a.Missing) == 0 && !a.OtherKey && a.Obstacle == nil
}

// works expects this many adopted tables, whose rows reach the outbox.
func (s *shop) works(n int) {
	s.Helper()
	all := s.list()
	if len(all) != n || slices.ContainsFunc(all, func(a adopt.Adopted) bool { return !works(a) }) {
		s.Errorf("got %+v, want %d that work", all, n)
	}
}

func (s *shop) moves(n int64, r adopt.Request) {
	s.Helper()
	if result := s.adopt(r); result.Moved != n {
		s.Errorf("moved %d, want %d", result.Moved, n)
	}
}

// fails expects that a request is rejected, with these words and this in the hint.
func (s *shop) fails(as *pgx.Conn, r adopt.Request, words, hint string) {
	s.Helper()
	_, err := adopt.Adopt(s.Context(), as, r)
	if err == nil || !strings.Contains(err.Error(), words) || !strings.Contains(problem.Hint(err), hint) {
		s.Errorf("got %v (%s), want %s (%s)", err, problem.Hint(err), words, hint)
	}
}

func view(r adopt.Request) adopt.Request {
	r.View = true
	return r
}

// returning inserts a row of the application, and compares what RETURNING returns.
func (s *shop) returning(want any, sql string) {
	s.Helper()
	app := shop{Tables: &tabletest.Tables{TB: s.TB, Conn: s.app}}
	app.is(want, sql)
}

type row = map[string]any

const (
	// debezium.io, "Outbox Event Router", and the columns of the Quarkus extension.
	outboxevent = `CREATE TABLE outboxevent (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL,
		timestamp timestamptz NOT NULL DEFAULT now(), payload varchar(8000), tracingspancontext varchar(256))`
	simplest = `CREATE TABLE outboxevent (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb)`
	events   = `CREATE TABLE events (id bigserial PRIMARY KEY, topic text, customer text, body text, sent_at timestamptz)`
	eventMap = "routing_key=topic;ordering_key=customer;payload=body;message_id=id"
	first    = "00000000-0000-4000-8000-000000000001"
	second   = "00000000-0000-4000-8000-000000000002"
)

func (s *shop) list() []adopt.Adopted {
	s.Helper()
	all, err := adopt.List(s.Context(), s.Conn, s.outbox)
	must(s, err)
	return all
}

func (s *shop) undo(from string) {
	s.Helper()
	table := outbox.Table{Schema: "public", Name: from}
	a, err := adopt.Find(s.Context(), s.Conn, s.outbox, &table)
	must(s, err)
	must(s, a.Undo(s.Context(), s.Conn))
}

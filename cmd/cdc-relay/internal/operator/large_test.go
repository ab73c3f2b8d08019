package operator_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// largeValues are values of more than 1 MB, by column. Some need few bytes on disk.
var largeValues = []struct{ column, value string }{
	{"payload", `to_json(repeat('x', 1200000))`},
	{"payload", `(SELECT to_json(string_agg(md5(i::text), '')) FROM generate_series(1, 40000) i)`},
	{"payload_bytes", `(SELECT decode(string_agg(md5(i::text), ''), 'hex') FROM generate_series(1, 80000) i)`},
	{"headers", `jsonb_build_object('a', repeat('x', 1200000))`},
	{"headers", `(SELECT jsonb_build_object('a', jsonb_agg('{}'::jsonb)) FROM generate_series(1, 400000))`},
	{"headers", `(SELECT jsonb_build_object('a', jsonb_agg('1e100000'::jsonb)) FROM generate_series(1, 12))`}, // 600 bytes on disk
	{"properties", `(SELECT jsonb_object_agg(md5(i::text), i) FROM generate_series(1, 40000) i)`},
	{"redacted_payload", `to_json(repeat('x', 1200000))`},
	{"last_error", `'nack: ' || repeat('ö', 600000)`},
	{"last_error", `(SELECT 'nack: ' || string_agg(md5(i::text), '') FROM generate_series(1, 40000) i)`},
	{"routing_key", `repeat('k', 1200000)`},
	{"exchange", `repeat('e', 1200000)`},
}

// withLargeRows adds a row for each large value, and a small row before and after them, to all tables. It returns the ids.
func withLargeRows(f *fixture) (ids []int64) {
	f.Helper()
	columns := func(large string) string {
		all := []string{"routing_key", "payload", "ordering_key", "last_error", "attempts"}
		if large == "payload_bytes" {
			all[1] = "schema_version"
		}
		return strings.Join(all, ", ")
	}
	insert := func(column, value string) {
		names := columns(column)
		values := map[string]string{"routing_key": "'r'", "payload": "'1'", "ordering_key": "'k'", "last_error": "'nack: full'", "attempts": "1", "schema_version": "1"}
		if _, known := values[column]; !known {
			names += ", " + column
		}
		values[column] = value
		var all []string
		for name := range strings.SplitSeq(names, ", ") {
			all = append(all, values[name])
		}
		ids = append(ids, f.Insert(fmt.Sprintf("(%s, available_at) VALUES (%s, now() + interval '1 hour')", names, strings.Join(all, ", "))))
	}
	insert("routing_key", "'first'")
	for _, large := range largeValues {
		insert(large.column, large.value)
	}
	insert("routing_key", "'last'")
	const kept = `id, message_id, exchange, routing_key, ordering_key, payload, payload_bytes, headers, properties, redacted_payload, schema_version, created_at, attempts, last_error`
	f.Exec(`INSERT INTO outbox_dead_letter (` + kept + `, failure_reason) SELECT ` + kept + `, CASE WHEN exchange IS NULL THEN 'nack' ELSE repeat('n', 1200000) END FROM outbox`)
	f.Exec(`CREATE TABLE outbox_published (LIKE outbox, published_at timestamptz NOT NULL DEFAULT now())`)
	f.Exec(`INSERT INTO outbox_published (` + kept + `) SELECT ` + kept + ` FROM outbox`)
	return ids
}

// shownBytes is the memory of the values of a view.
func shownBytes(m operator.Message) int {
	n := len(m.RoutingKey) + len(m.Headers) + len(m.Properties) + len(m.Redacted) + len(m.Payload)
	for _, s := range []*string{m.Exchange, m.OrderingKey, m.LastError} {
		if s != nil {
			n += len(*s)
		}
	}
	return n
}

// A value that is too large is shown as its size, in each view, and the rows beside it are shown.
func TestALargeRowHidesNoOther(t *testing.T) {
	f := newFixture(t)
	ids := withLargeRows(f)
	o := f.operator()
	check := func(view string, err error, rows []operator.Message, want int) {
		t.Helper()
		if err != nil || len(rows) != want {
			t.Fatalf("%s: %d rows, want %d; %v", view, len(rows), want, err)
		}
		for _, m := range rows {
			if n := shownBytes(m); n > 12<<10 {
				t.Errorf("%s, row %d: %d bytes are shown", view, m.ID, n)
			}
		}
	}
	page := operator.Page{Limit: 100}
	for _, filter := range []operator.Filter{
		{},
		{State: operator.Retrying},
		{Reason: text("nack")},
		{OrderingKey: text("k")},
		{State: operator.Dead},
		{State: operator.Dead, Reason: text("nack")},
		{State: operator.Dead, IDs: ids},
		{State: operator.Dead, OrderingKey: text("k")},
		{State: operator.Published},
		{State: operator.Published, IDs: ids},
	} {
		for _, page.Payload = range []bool{false, true} {
			list, err := o.List(t.Context(), filter, page)
			check(fmt.Sprintf("list %+v, payload %t", filter, page.Payload), err, list.Rows, len(ids))
			for _, m := range list.Rows {
				if len(m.Reason) > 5000 {
					t.Errorf("a reason of %d bytes", len(m.Reason))
				}
			}
		}
	}
	keys, err := o.Keys(t.Context(), false, operator.Known{}, page)
	var firsts []operator.Message
	for _, key := range keys.Rows {
		firsts = append(firsts, key.First)
	}
	check("keys", err, firsts, 1)

	for i, id := range ids {
		named := name(t, fmt.Sprint(id))
		found, err := o.Find(t.Context(), named, operator.Known{}, true)
		check(fmt.Sprintf("find %d", id), err, found, 3)
		if i == 0 || i > len(largeValues) {
			continue
		}
		large := largeValues[i-1]
		isText := large.column == "last_error" || large.column == "routing_key" || large.column == "exchange"
		sized := func(l operator.Large) bool { return l.Column == large.column && l.Stored > 0 }
		if !isText && !slices.ContainsFunc(found[0].Large, sized) { // a slow machine shows small values as their size, too
			t.Errorf("%s of row %d is not named: %+v", large.column, id, found[0].Large)
		}
	}
	if s := f.stats(false); s.States[operator.Retrying] != exactly(int64(len(ids))) || s.FailedRetries.N.Precision != operator.Exact || len(s.FailedRetries.All) != 2 {
		t.Errorf("%+v", s)
	}
}

// The server moves and deletes large rows; their values do not pass through the process.
func TestLargeRowsAreMovedAndDeleted(t *testing.T) {
	services.Thorough(t, "TestALargeRowHidesNoOther covers the views")
	f := newFixture(t)
	ids := withLargeRows(f)
	n := int64(len(ids))
	f.Exec(`UPDATE outbox_dead_letter SET id = id + 1000, message_id = gen_random_uuid()`)
	for _, verb := range []operator.Verb{operator.Requeue, operator.Replay, operator.Retry} {
		if done := f.change(operator.Change{Do: verb, Batch: 1000}); done.Done != n {
			t.Errorf("%s: %+v", verb, done)
		}
	}
	if got := tabletest.One[int64](f, `SELECT count(*) FROM outbox WHERE pg_column_size(headers) > 10000`); got != 3*2 {
		t.Errorf("%d rows have their headers", got)
	}
	f.DeadLetter(1, "nack", "last_error", `repeat('x', 1200000)`)
	if purged := f.change(operator.Change{Do: operator.Purge, Filter: operator.Filter{Reason: text("nack")}}); purged.Done != 1 {
		t.Errorf("purged %+v", purged)
	}
}

// Triggers, defaults, constraints, domains and policies of an application name its own objects without a schema. They run
// in the sessions of relay and commands.
func TestCodeOfTheApplicationFindsItsOwnNames(t *testing.T) {
	f := newFixture(t)
	f.history()
	database := tabletest.One[string](f, `SELECT current_database()`)
	role := fmt.Sprintf("relay_%d", f.Conn.PgConn().PID())
	f.Exec(`CREATE SCHEMA app; CREATE ROLE ` + role + ` BYPASSRLS; ALTER DATABASE ` + database + ` SET search_path = app, public; SET search_path = app, public;
		CREATE TABLE audit (of text);
		CREATE FUNCTION helper(text) RETURNS text LANGUAGE sql AS $$ SELECT prefix || $1 FROM (SELECT 'x' AS prefix) p $$;
		CREATE FUNCTION fine(text) RETURNS boolean LANGUAGE sql AS $$ SELECT helper($1) IS NOT NULL $$;
		CREATE FUNCTION planned(text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RETURN fine($1); END $$;
		CREATE DOMAIN word AS text CHECK (planned(VALUE));
		CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO audit VALUES (helper(TG_OP || ' ' || TG_RELID::regclass)); RETURN coalesce(NEW, OLD); END $$`)
	defer func() { f.Exec(`DROP OWNED BY ` + role + `; DROP ROLE ` + role) }()
	for _, table := range []string{"outbox", "outbox_dead_letter", "outbox_published"} {
		f.Exec(`ALTER TABLE ` + table + ` ADD CHECK (planned(routing_key)), ADD COLUMN tag word DEFAULT helper('tag');
			CREATE TRIGGER note BEFORE INSERT OR UPDATE OR DELETE ON ` + table + ` FOR EACH ROW EXECUTE FUNCTION note()`)
	}
	f.Exec(`ALTER TABLE outbox_published ENABLE ROW LEVEL SECURITY, ADD COLUMN n text GENERATED ALWAYS AS (left(routing_key, 1)) STORED;
		CREATE POLICY planned ON outbox_published USING (planned(routing_key)) WITH CHECK (fine(routing_key));
		GRANT USAGE ON SCHEMA app TO ` + role + `; GRANT ALL ON ALL TABLES IN SCHEMA app, public TO ` + role + `; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO ` + role)
	s, err := store.Open(pgdial.AddressOf(f.URL+"&role="+role, ""), store.Options{Table: tabletest.Name(), KeepPublished: time.Hour})
	must(t, err)
	t.Cleanup(s.Close)
	for range 4 {
		f.Insert(`(routing_key, payload) VALUES ('r', '1')`)
	}
	messages, _, err := s.ReadRows(t.Context(), f.IDs("true"), math.MaxInt64)
	if err != nil || len(messages) != 4 {
		t.Fatalf("%d rows are read, %v", len(messages), err)
	}
	rows := make([]outbox.Settlement, 4)
	for i, decision := range []outbox.Decision{{Action: outbox.Delete}, {Action: outbox.Retry, Delay: time.Hour, Detail: "nack"}, {Action: outbox.DeadLetter, Reason: "nack"}, {Action: outbox.Delete}} {
		rows[i] = outbox.Settlement{Message: messages[i], Decision: decision}
	}
	settled, err := s.Settle(t.Context(), rows)
	if err != nil || len(settled.Done) != 4 {
		t.Fatalf("%+v, %v", settled, err)
	}
	f.Exec(`ALTER ROLE ` + role + ` NOBYPASSRLS`) // a relay needs it, a person does not
	ctx := t.Context()
	config, err := pgx.ParseConfig(f.URL + "&role=" + role)
	must(t, err)
	pgdial.CatalogFirst(&config.Config) // as commands connect
	conn, err := pgx.ConnectConfig(ctx, config)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	o, err := operator.New(ctx, conn, tabletest.Name())
	must(t, err)
	for what, err := range map[string]error{
		"requeue": second(o.Change(ctx, operator.Change{Do: operator.Requeue, Batch: 10}, nil, quiet)),
		"replay":  second(o.Change(ctx, operator.Change{Do: operator.Replay, Batch: 2}, nil, quiet)),
		"retry":   second(o.Change(ctx, operator.Change{Do: operator.Retry, Batch: 10}, nil, quiet)),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	f.DeadLetter(1, "nack")
	if _, err := s.DeleteDeadLetters(ctx, 0, 10); err != nil {
		t.Error(err)
	}
	got := tabletest.One[string](f, `SELECT string_agg(DISTINCT regexp_replace(substr(of, 2), '_p20.*', '_published'), ', ' ORDER BY regexp_replace(substr(of, 2), '_p20.*', '_published')) FROM audit`)
	const want = "DELETE outbox, DELETE outbox_dead_letter, INSERT outbox, INSERT outbox_dead_letter, INSERT outbox_published, UPDATE outbox"
	if got != want {
		t.Errorf("the triggers noted %s", got)
	}
}

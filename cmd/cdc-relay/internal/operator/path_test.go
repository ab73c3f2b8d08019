package operator_test

import (
	"fmt"
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

// as connects like a command, with further parameters in the URL.
func (f *fixture) as(parameters string) *operator.Tables {
	f.Helper()
	config, err := pgx.ParseConfig(f.URL + parameters)
	must(f, err)
	pgdial.CatalogFirst(&config.Config)
	conn, err := pgx.ConnectConfig(f.Context(), config)
	must(f, err)
	f.Cleanup(func() { _ = conn.Close(f.Context()) })
	o, err := operator.New(f.Context(), conn, tabletest.Name())
	must(f, err)
	return o
}

// The role may not even plan a trap, so a statement that would run one fails.
func TestCommandsRunNobodyElsesFunctions(t *testing.T) {
	services.Thorough(t, "plants thousands of functions")
	f := newFixture(t)
	f.history()
	role := fmt.Sprintf("operator_%d", f.Conn.PgConn().PID())
	f.Exec(`CREATE ROLE ` + role)
	defer func() { f.Exec(`DROP OWNED BY ` + role); f.Exec(`DROP ROLE ` + role) }()
	f.Exec(`GRANT ALL ON ALL TABLES IN SCHEMA public TO ` + role)
	f.Exec(`GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO ` + role)
	f.Exec(`SELECT setval('outbox_id_seq', 50)`)
	f.Exec(`INSERT INTO outbox (routing_key, payload, ordering_key, attempts, available_at) VALUES
		('r', '1', 'k', 0, NULL), ('r', '1', 'l', 3, now() + interval '1 h'), ('r', '1', NULL, 3, now() - interval '1 h')`)
	f.Exec(`INSERT INTO outbox_published (id, created_at, published_at, message_id, attempts, schema_version, routing_key, payload)
		SELECT i, now(), now(), gen_random_uuid(), 2, 1, 'r', '1' FROM generate_series(1, 5) i`)
	tabletest.PlantTraps(t, f.Conn)
	for n, path := range []string{"", "&search_path=evil,public,pg_catalog"} {
		f.Exec(`INSERT INTO outbox_dead_letter (id, created_at, message_id, attempts, schema_version, routing_key, ordering_key, payload, failure_reason)
			VALUES ($1, now(), gen_random_uuid(), 6, 1, 'r', 'd', '{"n":1}', 'nack'), ($1 + 1, now(), gen_random_uuid(), 6, 1, 'r', 'd', '{"n":1}', 'nack')`, 10*n)
		o, ctx := f.as("&role="+role+path), t.Context()
		f.everyLook(o)
		all := operator.Filter{
			IDs: []int64{1, 2, 51}, MessageIDs: []outbox.UUID{{1}}, RoutingKey: pattern("r.#"), Exchange: text(""), OrderingKey: text("k"), Reason: text("nack"),
			OlderThan: time.Nanosecond, NewerThan: time.Hour,
		}
		page := operator.Page{Limit: 10}
		for what, err := range map[string]error{
			"list": second(o.List(ctx, all, page)), "dead letters": second(o.List(ctx, all.In(operator.Dead), page)), "count": second(o.Count(ctx, operator.Change{Do: operator.Purge, Filter: all})),
			"published": second(o.List(ctx, all.In(operator.Published), page)), "has history": second(o.HasHistory(ctx)), "slot": second(o.Slot(ctx, "none")),
			"hosts":   second(o.RelayHosts(ctx, time.Minute)),
			"replay":  second(o.Change(ctx, operator.Change{Do: operator.Replay, Filter: operator.Filter{RoutingKey: pattern("r")}, Batch: 2}, nil, quiet)),
			"requeue": second(o.Change(ctx, operator.Change{Do: operator.Requeue, Filter: operator.Filter{IDs: []int64{int64(10 * n)}}, Batch: 10}, nil, quiet)),
			"purge":   second(o.Change(ctx, operator.Change{Do: operator.Purge, Batch: 10}, nil, quiet)),
		} {
			if err != nil {
				t.Errorf("%s with path %q: %v", what, path, err)
			}
		}
	}
	tabletest.Trapped(t, f.Conn)
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
	claim, err := s.Lock(t.Context(), f.IDs("true"), outbox.AllFresh(), "")
	if err != nil || len(claim.Messages) != 4 {
		t.Fatalf("%v, %v", claim, err)
	}
	rows := make([]outbox.Settlement, 3)
	for i, decision := range []outbox.Decision{{Action: outbox.Delete}, {Action: outbox.Retry, Delay: time.Hour, Detail: "nack"}, {Action: outbox.DeadLetter, Reason: "nack"}} {
		rows[i] = outbox.Settlement{Message: claim.Messages[i], Decision: decision}
	}
	streamed := outbox.Settlement{Message: claim.Messages[3], Decision: outbox.Decision{Action: outbox.Delete}}
	must(t, claim.Commit(t.Context(), rows, time.Hour))
	settled, err := s.Settle(t.Context(), []outbox.Settlement{streamed})
	if err != nil || len(settled.Done) != 1 {
		t.Fatalf("%+v, %v", settled, err)
	}
	f.Exec(`ALTER ROLE ` + role + ` NOBYPASSRLS`) // a relay needs it, a person does not
	o, ctx := f.as("&role="+role), t.Context()
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

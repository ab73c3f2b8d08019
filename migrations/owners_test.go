package migrations_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// It may have been added after the tables were set up, by a role with TRIGGER or REFERENCES, or by somebody who uses what
// another role can change. The hint drops it.
func TestCodeOfAnotherRoleThatHangsOnTheTablesIsFound(t *testing.T) {
	const mine = "CREATE TABLE mine (id bigint REFERENCES outbox ON DELETE CASCADE)"
	const event = "CREATE FUNCTION event() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'"
	const onMine = "CREATE TRIGGER t AFTER DELETE ON mine FOR EACH ROW EXECUTE FUNCTION grabbing()"
	conn := tabletest.New(t).Conn
	role := fmt.Sprint("mallory_", conn.PgConn().PID())
	exec1(t, conn, "CREATE ROLE "+role)
	defer exec1(t, conn, "DROP ROLE "+role)
	for name, test := range map[string]struct{ ours, theirs, later, says string }{
		"trigger": {
			theirs: "CREATE TRIGGER t BEFORE DELETE OR INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION grabbing()",
			says:   "trigger t of public.outbox uses function public.grabbing()",
		},
		"condition of a trigger": {
			ours: "CREATE TRIGGER t AFTER DELETE ON outbox FOR EACH ROW WHEN (grab() = 1) EXECUTE FUNCTION unmoved()",
			says: "trigger t of public.outbox uses function public.grab()",
		},
		"trigger of dead letters": {
			theirs: "CREATE TRIGGER t BEFORE DELETE OR INSERT ON outbox_dead_letter FOR EACH ROW EXECUTE FUNCTION grabbing()",
			says:   "trigger t of public.outbox_dead_letter uses",
		},
		"foreign key": {theirs: mine, says: "table public.mine of role"},
		"trigger behind a foreign key": {
			ours: mine + "; GRANT TRIGGER ON mine TO PUBLIC", theirs: onMine,
			says: "trigger t of public.mine uses function public.grabbing()",
		},
		"trigger behind two foreign keys": {
			ours: "CREATE TABLE first (id bigint PRIMARY KEY REFERENCES outbox ON DELETE CASCADE); " +
				strings.Replace(mine, "outbox", "first", 1) + "; GRANT TRIGGER ON mine TO PUBLIC",
			theirs: onMine, says: "trigger t of public.mine uses",
		},
		"rule": {
			ours: "CREATE RULE r AS ON DELETE TO outbox DO ALSO SELECT grab()",
			says: "rule r of public.outbox uses function public.grab()",
		},
		"trigger behind a rule": {
			ours:   "CREATE TABLE mine (id bigint); CREATE RULE r AS ON DELETE TO outbox DO ALSO DELETE FROM mine; GRANT TRIGGER ON mine TO PUBLIC",
			theirs: onMine, says: "trigger t of public.mine uses",
		},
		"policy": {
			ours: "ALTER TABLE outbox ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON outbox USING (grab() = 1)",
			says: "policy p of public.outbox uses function public.grab()",
		},
		"default": {
			ours: "ALTER TABLE outbox_dead_letter ADD more int, ALTER more SET DEFAULT grab()",
			says: "default value more of public.outbox_dead_letter uses",
		},
		"check": {
			ours: "ALTER TABLE outbox ADD CONSTRAINT c CHECK (grab() = 1) NOT VALID",
			says: "constraint c of public.outbox uses function public.grab()",
		},
		"domain": {
			theirs: "CREATE DOMAIN d AS int", later: "ALTER TABLE outbox_dead_letter ADD more d",
			says: "table public.outbox_dead_letter uses type public.d of role",
		},
		"check of a domain": {
			ours: "CREATE DOMAIN d AS int CHECK (grab() = 1); ALTER TABLE outbox_dead_letter ADD more d",
			says: "table public.outbox_dead_letter uses function public.grab()",
		},
		"index": {
			theirs: "CREATE FUNCTION same(bigint) RETURNS bigint IMMUTABLE LANGUAGE sql RETURN $1", later: "CREATE INDEX i ON outbox_dead_letter (same(id))",
			says: "index public.i uses function public.same(bigint)",
		},
		"operator": {
			theirs: "CREATE FUNCTION same(int, int) RETURNS bool LANGUAGE sql RETURN $1 = $2; CREATE OPERATOR ### (FUNCTION = same, LEFTARG = int, RIGHTARG = int)",
			later:  "ALTER TABLE outbox ADD CONSTRAINT c CHECK (attempts ### 1) NOT VALID",
			says:   "constraint c of public.outbox uses operator public.###(integer,integer)",
		},
		"event trigger": {
			theirs: event,
			later:  "CREATE EVENT TRIGGER e ON ddl_command_start EXECUTE FUNCTION event()",
			says:   "event trigger e uses function public.event()",
		},
		"sequence":  {ours: "CREATE SEQUENCE s; ALTER TABLE outbox_dead_letter ADD more bigint DEFAULT nextval('s')", later: "ALTER SEQUENCE s OWNER TO " + role, says: "default value more of public.outbox_dead_letter uses sequence public.s"},
		"partition": {ours: "CREATE TABLE kept () INHERITS (outbox)", later: "ALTER TABLE kept OWNER TO " + role, says: "table public.kept belongs to"},
		// What cannot run, or is not run as us.
		"disabled trigger": {
			theirs: "CREATE TRIGGER t BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION grabbing()",
			later:  "ALTER TABLE outbox DISABLE TRIGGER t",
		},
		"disabled rule":          {ours: "CREATE RULE r AS ON DELETE TO outbox DO ALSO SELECT grab(); ALTER TABLE outbox DISABLE RULE r"},
		"disabled event trigger": {theirs: event, later: "CREATE EVENT TRIGGER e ON ddl_command_start EXECUTE FUNCTION event(); ALTER EVENT TRIGGER e DISABLE"},
		"table that we refer to": {theirs: "CREATE TABLE mine (id int PRIMARY KEY)", later: "ALTER TABLE outbox ADD tenant int REFERENCES mine"},
		"view that reads":        {theirs: "CREATE VIEW mine AS SELECT grab(), id FROM outbox"},
		"our own":                {ours: mine + "; CREATE DOMAIN d AS int CHECK (VALUE > 0); ALTER TABLE outbox ADD n d DEFAULT 1; CREATE INDEX ON outbox (abs(n))"},
	} {
		tx, err := conn.Begin(t.Context())
		must(t, err)
		defer tx.Rollback(t.Context()) //nolint:errcheck // it ends nothing if a test has failed
		for _, statement := range []string{
			"CREATE FUNCTION unmoved() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
			"GRANT CREATE ON SCHEMA public TO " + role, "GRANT TRIGGER, REFERENCES, SELECT ON outbox, outbox_dead_letter TO " + role,
			"SET LOCAL ROLE " + role, "CREATE FUNCTION grab() RETURNS int LANGUAGE sql AS 'SELECT 1'",
			"CREATE FUNCTION grabbing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
			"RESET ROLE", test.ours, "SET LOCAL ROLE " + role, test.theirs, "RESET ROLE", test.later,
		} {
			if _, err := tx.Exec(t.Context(), statement); err != nil {
				t.Fatalf("%s: %s: %v", name, statement, err)
			}
		}
		found := migrations.CheckOwners(t.Context(), tx, tabletest.Name())
		if test.says == "" && found != nil || test.says != "" && (found == nil || !strings.Contains(found.Error(), test.says) || !strings.Contains(found.Error(), "role "+role)) {
			t.Errorf("%s: %v, want %s", name, found, test.says)
		}
		if err := migrations.CheckOwners(t.Context(), tx, tabletest.Name(), role); err != nil {
			t.Errorf("%s: the role is named, and %v", name, err)
		}
		if _, drop, _ := strings.Cut(problem.Hint(found), "; else: "); found != nil && strings.ToUpper(drop[:5]) == drop[:5] {
			_, err := tx.Exec(t.Context(), drop)
			must(t, err)
			if again := migrations.CheckOwners(t.Context(), tx, tabletest.Name()); again != nil && again.Error() == found.Error() {
				t.Errorf("%s: after %s: %v", name, drop, again)
			}
		}
		must(t, tx.Rollback(t.Context()))
	}
}

// wantState checks the SQLSTATE; "": the row is accepted. The error must name what is wrong.
func wantState(t *testing.T, err error, state, names string) {
	t.Helper()
	var pgErr *pgconn.PgError
	errors.As(err, &pgErr)
	switch {
	case state == "" && err != nil:
		t.Errorf("rejected: %v", err)
	case state == "":
	case pgErr == nil:
		t.Errorf("got %v, want SQLSTATE %s", err, state)
	case pgErr.Code != state || !strings.Contains(pgErr.Message, names):
		t.Errorf("got %s (%s), want SQLSTATE %s naming %q", pgErr.Code, pgErr.Message, state, names)
	}
}

// Types, NOT NULL and the index reject them. The relay checks the rest.
func TestInvalidInsertsFail(t *testing.T) {
	conn := tabletest.New(t).Conn
	const notNull, badText, tooLong, outOfRange = "23502", "22P02", "54000", "22003"
	for _, test := range []struct{ columns, values, state, names string }{
		{"routing_key, payload", "'k', '{}'", "", ""},
		{"routing_key, payload", "'', 'null'", "", ""},
		{"routing_key, payload_bytes", "'k', ''", "", ""},
		{"routing_key, payload", "NULL, '{}'", notNull, "routing_key"},
		{"routing_key, payload", "'k', '{'", badText, "json"},
		{"routing_key, payload, headers", "'k', '{}', '{'", badText, "json"},
		{"routing_key, payload, message_id", "'k', '{}', 'x'", badText, "uuid"},
		{"routing_key, payload, schema_version", "'k', '{}', 32768", outOfRange, "smallint"},
		{"routing_key, payload, ordering_key", "'k', '{}', repeat('x', 2684)", "", ""},
		{"routing_key, payload, ordering_key", "'k', '{}', repeat('x', 2685)", tooLong, "outbox_ordering_key_idx"},
		{"routing_key, payload, ordering_key", "'k', '{}', repeat('é', 1343)", tooLong, "outbox_ordering_key_idx"},
		{"routing_key, payload, ordering_key, coalesce_key", "'k', '{}', repeat('x', 1000), repeat('x', 1674)", "", ""},
		{"routing_key, payload, ordering_key, coalesce_key", "'k', '{}', repeat('x', 1000), repeat('x', 1700)", tooLong, "outbox_coalesce_key_idx"},
		{"routing_key, payload, coalesce_key", "'k', '{}', repeat('x', 2685)", tooLong, "outbox_coalesce_key_idx"},
		{"routing_key, payload, expires_at, max_attempts, coalesce_key", "'k', '{}', now(), 0, 'c'", "", ""},
		{"routing_key, payload, available_at, possible_duplicate, last_error, redacted_payload", "'k', '1', now(), true, 'x', '1'", "", ""},
		// These become dead letters, see e2e.
		{"routing_key", "'k'", "", ""},
		{"routing_key, payload, payload_bytes", "'k', '{}', 'x'", "", ""},
		{"routing_key, payload, exchange", "repeat('k', 256), '1', repeat('x', 256)", "", ""},
		{"routing_key, payload, headers, properties", "'k', '1', '[1]', 'null'", "", ""},
		{"routing_key, payload, attempts, schema_version", "'k', '1', -1, 0", "", ""},
	} {
		t.Run(test.values, func(t *testing.T) {
			_, err := conn.Exec(t.Context(), fmt.Sprintf("INSERT INTO outbox (%s) VALUES (%s)", test.columns, test.values))
			wantState(t, err, test.state, test.names)
		})
	}
}

// Each INSERT would prepare CHECKs, generated columns and triggers again. docs/results/README.md has their cost.
func TestTheOutboxHasNoChecksOrTriggers(t *testing.T) {
	conn := tabletest.New(t).Conn
	rows, err := conn.Query(t.Context(), `
		SELECT conname::text FROM pg_constraint WHERE conrelid = 'outbox'::regclass AND contype NOT IN ('p', 'n')
		UNION ALL SELECT tgname::text FROM pg_trigger WHERE tgrelid = 'outbox'::regclass
		UNION ALL SELECT attname::text FROM pg_attribute WHERE attrelid = 'outbox'::regclass AND attgenerated <> ''
		UNION ALL SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = 'outbox'::regclass AND indexprs IS NOT NULL
		UNION ALL SELECT p.oid::regprocedure::text FROM pg_proc p WHERE pronamespace = 'public'::regnamespace`)
	must(t, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(found) > 0 {
		t.Errorf("found %v, %v", found, err)
	}
}

package migrations_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

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

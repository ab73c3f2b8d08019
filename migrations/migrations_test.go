package migrations_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func TestMain(m *testing.M) { services.Main(m) }

func must(t testing.TB, err error) { t.Helper(); services.Must(t, err) }

func exec1(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	tabletest.Run(t, conn, sql, args...)
}

func up(t *testing.T, conn *pgx.Conn, table outbox.Table) {
	t.Helper()
	_, _, err := migrations.Up(t.Context(), conn, table)
	must(t, err)
}

func weirdTables() []outbox.Table {
	return []outbox.Table{
		tabletest.Name(),
		{Schema: "My Schema", Name: "Out.Box"},
		{Schema: `we"ird`, Name: `a"b'c\{{.x}} $1 %s`},
		{Schema: "select", Name: "$check$"},
		{Schema: "ключ", Name: "таблица_исходящих_сообщен"},                    // 25 letters of two bytes
		{Schema: strings.Repeat("s", 63), Name: strings.Repeat("t", 51)},       // the maximum length
		{Schema: strings.Repeat("s", 63), Name: strings.Repeat("t", 50) + "u"}, // differs only in the part that is cut
		{Schema: "public", Name: "line\nbreak"},                                // must not end a comment
	}
}

func TestUpIsIdempotentForAnyName(t *testing.T) {
	conn := tabletest.Connect(t, services.Database(t))
	for _, table := range weirdTables() {
		for _, before := range []int{0, migrations.Latest, migrations.Latest} {
			state, err := migrations.Status(t.Context(), conn, table)
			if err != nil || state.Current != before || len(state.Pending) != migrations.Latest-before {
				t.Fatalf("%s: before: %+v, %v", table, state, err)
			}
			if from, to, err := migrations.Up(t.Context(), conn, table); from != before || to != migrations.Latest || err != nil {
				t.Fatalf("%s: from %d to %d, %v, want from %d", table, from, to, err, before)
			}
		}
		exec1(t, conn, "INSERT INTO "+table.SQL()+` (routing_key, payload, properties) VALUES ('k', '{}', '{"priority": 1}')`)
	}
}

func TestUpWritesTheVersionIntoAnEmptyTable(t *testing.T) {
	conn, table := tabletest.Connect(t, services.Database(t)), tabletest.Name()
	exec1(t, conn, "CREATE TABLE "+migrations.VersionTable(table).SQL()+" (version int4)")
	up(t, conn, table)
	if state, err := migrations.Status(t.Context(), conn, table); state.Current != migrations.Latest || err != nil {
		t.Errorf("%+v, %v", state, err)
	}
}

func TestUpRejectsATooLongName(t *testing.T) {
	table := outbox.Table{Schema: "public", Name: strings.Repeat("t", 52)}
	if _, err := migrations.SQL(table); err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("got %v", err)
	}
}

func TestUpNamesAnExistingTable(t *testing.T) {
	conn := tabletest.Connect(t, services.Database(t))
	exec1(t, conn, "CREATE TABLE outbox (something text)")
	_, _, err := migrations.Up(t.Context(), conn, tabletest.Name())
	if err == nil || !strings.Contains(err.Error(), `"outbox" already exists`) {
		t.Fatalf("got %v", err)
	}
	exec1(t, conn, "DROP TABLE outbox")
	up(t, conn, tabletest.Name())
}

// as connects with a new role that has these grants.
func as(t *testing.T, url string, owner *pgx.Conn, grants ...string) *pgx.Conn {
	t.Helper()
	role, address := (&tabletest.Tables{TB: t, URL: url, Conn: owner}).Role("")
	for _, grant := range grants {
		exec1(t, owner, grant+" TO "+role)
	}
	return tabletest.Connect(t, address)
}

func TestStatusAndIdleUpNeedOnlySelectOnTheVersion(t *testing.T) {
	tables := tabletest.New(t)
	url, owner := tables.URL, tables.Conn
	exec1(t, owner, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
	reader := as(t, url, owner, "GRANT SELECT ON outbox_migrations")
	if state, err := migrations.Status(t.Context(), reader, tabletest.Name()); err != nil || state.Current != migrations.Latest {
		t.Errorf("Status: %+v, %v", state, err)
	}
	if _, _, err := migrations.Up(t.Context(), reader, tabletest.Name()); err != nil {
		t.Errorf("Up: %v", err)
	}
}

func TestUpInAnExistingSchemaNeedsNoPrivilegeOnTheDatabase(t *testing.T) {
	url := services.Database(t)
	owner := tabletest.Connect(t, url)
	exec1(t, owner, "CREATE SCHEMA shop")
	conn := as(t, url, owner, "GRANT CREATE, USAGE ON SCHEMA shop")
	up(t, conn, outbox.Table{Schema: "shop", Name: "outbox"})
}

func TestDropRejectsTablesWithMessages(t *testing.T) {
	conn := tabletest.Connect(t, services.Database(t))
	for _, table := range weirdTables()[:3] {
		if dropped, err := migrations.Drop(t.Context(), conn, table); dropped || err != nil {
			t.Errorf("%s: nothing there: %v, %v", table, dropped, err)
		}
		up(t, conn, table)
		exec1(t, conn, "INSERT INTO "+table.SQL()+" (routing_key, payload) SELECT 'k', '1' FROM generate_series(1, 200)")
		var full *migrations.NotEmptyError
		if _, err := migrations.Drop(t.Context(), conn, table); !errors.As(err, &full) || full.Waiting != 100 || full.Dead != 0 {
			t.Errorf("%s: with rows: %v", table, err)
		}
		exec1(t, conn, "WITH d AS (DELETE FROM "+table.SQL()+" RETURNING *) INSERT INTO "+table.DeadLetter().SQL()+
			" (id, created_at, message_id, attempts, schema_version, routing_key, payload, failure_reason)"+
			" SELECT id, created_at, message_id, attempts, schema_version, routing_key, payload, 'nack' FROM d LIMIT 1")
		if err := migrations.CheckEmpty(t.Context(), conn, table); !errors.As(err, &full) || full.Waiting != 0 || full.Dead != 1 {
			t.Errorf("%s: with a dead letter: %v", table, err)
		}
		exec1(t, conn, "DELETE FROM "+table.DeadLetter().SQL())
		if dropped, err := migrations.Drop(t.Context(), conn, table); !dropped || err != nil {
			t.Errorf("%s: empty: %v, %v", table, dropped, err)
		}
	}
	is(t, conn, 0, `SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname IN ('public', 'My Schema', 'we"ird')`)
}

// A tool for migrations runs the script in a transaction of its own, and goes on in it.
func TestTheScriptsCreateTheSameTablesAndFunctions(t *testing.T) {
	ours, theirs := services.Database(t), services.Database(t)
	conn, byScript := tabletest.Connect(t, ours), tabletest.Connect(t, theirs)
	for _, table := range weirdTables() {
		up(t, conn, table)
		script, err := migrations.SQL(table)
		must(t, err)
		tabletest.Psql(t, theirs, script)
		must(t, pgx.BeginFunc(t.Context(), byScript, func(tx pgx.Tx) error { // it can be run again
			if _, err := tx.Exec(t.Context(), script); err != nil {
				return err
			}
			var settings string
			err := tx.QueryRow(t.Context(), `SELECT concat(current_setting('search_path'), current_setting('lock_timeout'), current_setting('jit'))`).Scan(&settings)
			if settings != `"$user", public0on` {
				t.Errorf("the script leaves the settings %s", settings)
			}
			return err
		}))
		state, err := migrations.Status(t.Context(), byScript, table)
		if err != nil || state.Current != migrations.Latest {
			t.Errorf("%s: %+v, %v", table, state, err)
		}
		up(t, byScript, table)
		makeFunctions(t, conn, table)
		functions, err := migrations.FunctionsSQL(table)
		must(t, err)
		tabletest.Psql(t, theirs, functions, "-1")
	}
	want, got := catalog(t, conn), catalog(t, byScript)
	if want != got {
		t.Errorf("the catalogs differ.\nUp:\n%s\nscript:\n%s", want, got)
	}
}

// catalog describes all objects except the system's.
func catalog(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	rows, _ := conn.Query(t.Context(), `
		WITH ours AS (SELECT oid, nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema')
		SELECT concat_ws(' ', 'column', nspname, relname, attnum, attname, format_type(atttypid, atttypmod), attnotnull, attidentity,
			pg_get_expr(adbin, adrelid), col_description(c.oid, attnum), reloptions::text)
		FROM pg_class c JOIN ours n ON n.oid = relnamespace JOIN pg_attribute a ON attrelid = c.oid
		LEFT JOIN pg_attrdef d ON adrelid = c.oid AND adnum = attnum WHERE attnum > 0
		UNION ALL
		SELECT concat_ws(' ', 'table', nspname, relname, relkind, obj_description(c.oid, 'pg_class'))
		FROM pg_class c JOIN ours n ON n.oid = relnamespace
		UNION ALL
		SELECT concat_ws(' ', 'constraint', nspname, conname, pg_get_constraintdef(c.oid)) FROM pg_constraint c JOIN ours n ON n.oid = connamespace
		UNION ALL
		SELECT concat_ws(' ', 'index', schemaname, indexdef) FROM pg_indexes WHERE schemaname IN (SELECT nspname FROM ours)
		UNION ALL
		SELECT concat_ws(' ', 'function', pg_get_functiondef(p.oid), proacl::text) FROM pg_proc p JOIN ours n ON n.oid = pronamespace
		ORDER BY 1`)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(lines) < 100 {
		t.Fatalf("only %d lines describe the catalog, %v", len(lines), err)
	}
	return strings.Join(lines, "\n")
}

// The tables then equal those that Up creates.
func TestRestoreCreatesDroppedObjects(t *testing.T) {
	conn := tabletest.Connect(t, services.Database(t))
	for _, table := range weirdTables()[:3] {
		up(t, conn, table)
	}
	want := catalog(t, conn)
	for _, table := range weirdTables()[:3] {
		dead := table.DeadLetter()
		for _, dropped := range [][]outbox.Table{{dead}, {table}, {table, dead}, nil} {
			for _, one := range dropped {
				exec1(t, conn, "DROP TABLE "+one.SQL())
			}
			made, err := migrations.Restore(t.Context(), conn, table)
			if err != nil || !slices.Equal(made, dropped) {
				t.Fatalf("%s: made %v, want %v: %v", table, made, dropped, err)
			}
		}
	}
	if got := catalog(t, conn); got != want {
		t.Errorf("the catalogs differ.\nUp:\n%s\nRestore:\n%s", want, got)
	}
}

func TestRestoreNamesWhatIsInTheWay(t *testing.T) {
	for planted, want := range map[string]string{
		"ALTER TABLE outbox RENAME TO messages; CREATE VIEW outbox AS SELECT * FROM messages": "public.outbox is a view, and has to be a table",
		"ALTER TABLE outbox DROP schema_version":                                              "table public.outbox has no column schema_version",
	} {
		conn := tabletest.New(t).Conn
		exec1(t, conn, planted)
		_, err := migrations.Restore(t.Context(), conn, tabletest.Name())
		if err == nil || err.Error() != want {
			t.Fatalf("got %v, want %s", err, want)
		}
		exec1(t, conn, problem.Hint(err))
		if _, err := migrations.Restore(t.Context(), conn, tabletest.Name()); strings.Contains(planted, "DROP") && err != nil {
			t.Errorf("after the hint: %v", err)
		}
	}
}

func TestColumnsMatchTheTables(t *testing.T) {
	conn := tabletest.New(t).Conn
	for _, of := range []outbox.Table{tabletest.Name(), tabletest.Name().DeadLetter()} {
		columns, err := migrations.Columns(tabletest.Name(), of)
		must(t, err)
		var definitions []string
		for _, c := range columns {
			definitions = append(definitions, c.Definition())
		}
		exec1(t, conn, "CREATE TABLE again ("+strings.Join(definitions, ", ")+")")
		describe := func(name string) string {
			return value[string](t, conn, `SELECT string_agg(concat_ws(' ', attname, format_type(atttypid, atttypmod), attnotnull, attidentity, pg_get_expr(adbin, adrelid)), ', ' ORDER BY attnum)
				FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum WHERE attrelid = $1::text::regclass AND attnum > 0`, name)
		}
		if got, want := describe("again"), describe(of.SQL()); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		exec1(t, conn, "DROP TABLE again")
	}
}

// Every role may hold every advisory lock. None stops setup, or the deletion of the history.
func TestNoAdvisoryLockStopsTheOwner(t *testing.T) {
	url := services.Database(t)
	conn, stranger := tabletest.Connect(t, url), tabletest.Connect(t, url)
	exec1(t, stranger, "SELECT pg_advisory_lock(7161958354269858913)") // that of earlier versions
	up(t, conn, tabletest.Name())
	_, err := migrations.MakeHistory(t.Context(), conn, tabletest.Name())
	must(t, err)
	exec1(t, stranger, "SELECT pg_advisory_lock(hashtextextended('cdc-relay history', 'outbox_published'::regclass::oid::bigint))")
	exec1(t, conn, "CREATE TABLE outbox_p20200101 PARTITION OF outbox_published FOR VALUES FROM ('2020-01-01Z') TO ('2020-01-02Z')")
	is(t, conn, 1, "SELECT outbox_rotate(interval '1 h')")
}

// Nothing to do needs no lock. Otherwise, a session that stays in a transaction is named.
func TestASessionThatBlocksSetupIsNamed(t *testing.T) {
	services.Thorough(t, "it waits ten seconds for a lock, twice")
	url := services.Database(t)
	conn, other := tabletest.Connect(t, url), tabletest.Connect(t, url)
	blocks := func(lock string) {
		t.Helper()
		exec1(t, other, "SET application_name = 'a migration'; BEGIN; "+lock)
		_, _, err := migrations.Up(t.Context(), conn, tabletest.Name())
		pid := other.PgConn().PID()
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("is locked by Postgres process %d (postgres, a migration, idle in transaction, ", pid)) ||
			!strings.HasPrefix(problem.Hint(err), fmt.Sprintf("SELECT pg_catalog.pg_terminate_backend(%d);", pid)) {
			t.Errorf("%s: got %v, hint %q", lock, err, problem.Hint(err))
		}
		exec1(t, other, "ROLLBACK")
	}
	blocks("CREATE TABLE outbox_migrations (version int)")
	up(t, conn, tabletest.Name())
	exec1(t, other, "BEGIN; LOCK TABLE outbox_migrations IN EXCLUSIVE MODE")
	up(t, conn, tabletest.Name())
	exec1(t, other, "ROLLBACK")
	exec1(t, conn, "DELETE FROM outbox_migrations; DROP TABLE outbox, outbox_dead_letter")
	blocks("LOCK TABLE outbox_migrations IN EXCLUSIVE MODE")
	up(t, conn, tabletest.Name())
}

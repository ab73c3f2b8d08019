package schema_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func TestMain(m *testing.M) { services.Main(m) }

// wantProblem checks the problem of Check, and that its hint, if it is SQL, fixes it.
func wantProblem(f *tabletest.Tables, table outbox.Table, what, fix string) {
	f.Helper()
	use := schema.Use{Table: table}
	if strings.Contains(fix, "_published") {
		use.History = 24 * time.Hour
	}
	err := use.Check(f.Context(), f.Conn)
	var p *problem.Problem
	if !errors.As(err, &p) {
		f.Fatalf("err = %v, want a problem", err)
	}
	if !strings.Contains(p.Error(), what) || p.Hint() != fix {
		f.Errorf("%s\nhint %s\nwant %s\nhint %s", p, p.Hint(), what, fix)
	}
}

func TestCheckNamesAMissingTable(t *testing.T) {
	f := tabletest.New(t)
	f.Exec(`ALTER TABLE outbox RENAME TO boxes; CREATE VIEW outbox AS SELECT * FROM boxes`)
	wantProblem(f, tabletest.Name(), " is not a table", "cdc-relay setup")
	f.Exec(`DROP VIEW outbox; ALTER TABLE boxes RENAME TO outbox; DROP TABLE outbox_dead_letter`)
	wantProblem(f, tabletest.Name(), "table public.outbox_dead_letter does not exist", "cdc-relay setup")
	wantProblem(f, outbox.Table{Schema: "No Such", Name: "x"}, `table "No Such".x does not exist`, `# --table public.outbox, if that is meant; else: cdc-relay setup --table '"No Such".x'  # with the relay's own --slot and --publication`)
}

func TestCheckNamesMissingColumns(t *testing.T) {
	f := tabletest.New(t)
	columns := func(breaks, what, fix string) {
		t.Helper()
		f.Exec(breaks)
		wantProblem(f, tabletest.Name(), what, fix)
		f.Exec(fix) // the hint must fix it
	}
	columns(`ALTER TABLE outbox DROP headers, DROP last_error`, "table public.outbox has no column headers, last_error",
		`ALTER TABLE "public"."outbox" ADD COLUMN "last_error" text; ALTER TABLE "public"."outbox" ADD COLUMN "headers" jsonb;`)
	columns(`ALTER TABLE outbox_dead_letter RENAME dead_at TO old_dead_at`, "table public.outbox_dead_letter has no column dead_at",
		`ALTER TABLE "public"."outbox_dead_letter" RENAME COLUMN "old_dead_at" TO "dead_at";`)
	_, err := migrations.MakeHistory(t.Context(), f.Conn, tabletest.Name())
	services.Must(t, err)
	columns(`ALTER TABLE outbox_published DROP headers`, "table public.outbox_published has no column headers", `ALTER TABLE "public"."outbox_published" ADD COLUMN "headers" jsonb;`)
	if err := (schema.Use{Table: tabletest.Name(), History: time.Hour}).Check(t.Context(), f.Conn); err != nil {
		t.Error(err)
	}
	// Only a person knows whether the remark is the last error.
	columns(`ALTER TABLE outbox RENAME last_error TO remark; ALTER TABLE outbox DROP headers`, "has no column headers, last_error",
		`ALTER TABLE "public"."outbox" ADD COLUMN "headers" jsonb; -- if last_error was renamed: ALTER TABLE "public"."outbox" RENAME COLUMN NEW_NAME TO "last_error"; `+
			`if it was dropped: ALTER TABLE "public"."outbox" ADD COLUMN "last_error" text;`)
}

func TestCheckNamesEachMissingPrivilegeAndTheGrant(t *testing.T) {
	f := tabletest.New(t)
	f.Exec(`CREATE SCHEMA "Apps"`)
	f.Exec(`ALTER TABLE outbox SET SCHEMA "Apps"`)
	f.Exec(`ALTER TABLE outbox_dead_letter SET SCHEMA "Apps"`)
	table := outbox.Table{Schema: "Apps", Name: "outbox"}
	role, _ := f.Role("")
	defer f.Exec(`RESET ROLE`)
	for _, c := range []struct{ what, fix string }{
		{`role ` + role + ` may not use schema Apps`, `GRANT USAGE ON SCHEMA "Apps" TO ` + role + ";"},
		{
			`role ` + role + ` may not SELECT, UPDATE, DELETE on table "Apps".outbox`,
			`GRANT SELECT, UPDATE, DELETE ON "Apps".outbox TO ` + role + ";",
		},
		{
			`role ` + role + ` may not SELECT, INSERT on table "Apps".outbox_dead_letter`,
			`GRANT SELECT, INSERT ON "Apps".outbox_dead_letter TO ` + role + ";",
		},
		{
			`role ` + role + ` may not SELECT on sequence "Apps".outbox_id_seq`,
			`GRANT SELECT ON SEQUENCE "Apps".outbox_id_seq TO ` + role + ";",
		},
	} {
		f.Exec(`SET ROLE ` + role)
		wantProblem(f, table, c.what, c.fix)
		f.Exec(`RESET ROLE; ` + c.fix) // the hint must fix it
	}
	f.Exec(`SET ROLE ` + role)
	if err := (schema.Use{Table: table}).Check(t.Context(), f.Conn); err != nil {
		t.Error(err)
	}
	f.Exec(`RESET ROLE; REVOKE UPDATE ON "Apps".outbox FROM ` + role + `; SET ROLE ` + role)
	wantProblem(f, table, `may not UPDATE on table "Apps".outbox`, `GRANT UPDATE ON "Apps".outbox TO `+role+";")
}

// Keywords and other names, as schema, table and column. Each form of a name means the same to Postgres.
func TestPostgresReadsQuotedNames(t *testing.T) {
	f := tabletest.New(t)
	names := tabletest.One[[]string](f, `SELECT array_agg(word) FROM pg_get_keywords()`)
	for _, name := range append(names, "Capital", "a b", `a"b`, "1a", "a1", "_x", "größe", "a\n; SELECT 1; --", "a\r\\! id", "a'--", "a$$b",
		"a\u202eb\\", "\U000e0001", strings.Repeat("é", 31), "\\\x1b") {
		table, column := outbox.Table{Schema: name, Name: name}, outbox.Identifier(name)
		f.Exec(`BEGIN; CREATE SCHEMA ` + outbox.Identifier(name) + `; CREATE TABLE ` + table.String() + ` (` + column + ` int); ` +
			`ALTER TABLE ` + table.Printed() + ` ALTER COLUMN ` + outbox.QuoteIdentifier(name) + ` SET NOT NULL`)
		if n := tabletest.One[int](f, `SELECT count(*)::int FROM pg_attribute JOIN pg_class c ON c.oid = attrelid JOIN pg_namespace n ON n.oid = relnamespace
			WHERE nspname = $1 AND relname = $1 AND attname = $1 AND $1 = `+outbox.QuoteLiteral(name)+` AND attrelid = `+outbox.QuoteLiteral(table.SQL())+`::regclass`, name); n != 1 {
			t.Errorf("%s became another name", table)
		}
		f.Exec(`ROLLBACK`)
	}
	if got := (outbox.Table{Schema: "public", Name: "outbox"}).String(); got != "public.outbox" {
		t.Errorf("got %s", got)
	}
}

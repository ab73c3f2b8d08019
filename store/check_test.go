package store_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// role creates a role for the test, and returns its name and a URL to log in with.
func (f *fixture) role(grants ...string) (name, address string) {
	f.Helper()
	name = services.Name(f)
	f.Exec(`CREATE ROLE ` + name + ` LOGIN PASSWORD 'secret'`)
	f.Cleanup(func() {
		for _, statement := range []string{`DROP OWNED BY ` + name, `DROP ROLE ` + name} {
			if _, err := f.Conn.Exec(context.WithoutCancel(f.Context()), statement); err != nil {
				f.Logf("%s: %v", statement, err)
			}
		}
	})
	for _, grant := range grants {
		f.Exec(grant + ` TO ` + name)
	}
	u, err := url.Parse(f.URL)
	if err != nil {
		f.Fatal(err)
	}
	u.User = url.UserPassword(name, "secret")
	return name, u.String()
}

// wantProblem checks the problem of Check, and that its hint, if it is SQL, fixes it.
func wantProblem(f *fixture, s *store.Store, what, fix string) {
	f.Helper()
	err := s.Check(f.Context())
	var p *problem.Problem
	if !errors.As(err, &p) {
		f.Fatalf("err = %v, want a problem", err)
	}
	if !strings.Contains(p.Error(), what) || p.Hint() != fix {
		f.Errorf("%s\nhint %s\nwant %s\nhint %s", p, p.Hint(), what, fix)
	}
}

func TestCheckPassesAfterMigration(t *testing.T) {
	if err := newFixture(t).store.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestCheckNamesAMissingTable(t *testing.T) {
	f := newFixture(t)
	f.Exec(`DROP TABLE outbox_dead_letter`)
	wantProblem(f, f.store, "table public.outbox_dead_letter does not exist", "cdc-relay setup")
	none := open(t, f.URL, store.Options{Table: outbox.Table{Schema: "No Such", Name: "x"}})
	wantProblem(f, none, `table "No Such".x does not exist`, `cdc-relay setup --table '"No Such".x'  # with the relay's own --slot and --publication`)
}

func TestCheckRejectsAViewInPlaceOfATable(t *testing.T) {
	f := newFixture(t)
	f.Exec(`ALTER TABLE outbox RENAME TO boxes`)
	f.Exec(`CREATE VIEW outbox AS SELECT * FROM boxes`)
	wantProblem(f, f.store, " is not a table", "cdc-relay setup")
}

func TestCheckNamesMissingColumns(t *testing.T) {
	f := newFixture(t)
	f.Exec(`ALTER TABLE outbox DROP headers, DROP last_error, DROP coalesce_key`)
	wantProblem(f, f.store, "table public.outbox has no column headers, last_error, coalesce_key", "cdc-relay setup --tables-only")
	f.Exec(`ALTER TABLE outbox ADD headers jsonb, ADD last_error text, ADD coalesce_key text`)
	f.Exec(`ALTER TABLE outbox_dead_letter RENAME dead_at TO died_at`)
	wantProblem(f, f.store, "table public.outbox_dead_letter has no column dead_at", "cdc-relay setup --tables-only")
}

func TestCheckNamesEachMissingPrivilegeAndTheGrant(t *testing.T) {
	f := newFixture(t)
	f.Exec(`CREATE SCHEMA "Apps"`)
	f.Exec(`ALTER TABLE outbox SET SCHEMA "Apps"`)
	f.Exec(`ALTER TABLE outbox_dead_letter SET SCHEMA "Apps"`)
	role, address := f.role()
	s := open(t, address, store.Options{Table: outbox.Table{Schema: "Apps", Name: "outbox"}})
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
		wantProblem(f, s, c.what, c.fix)
		f.Exec(c.fix) // the hint must fix it
	}
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
	f.Exec(`REVOKE UPDATE ON "Apps".outbox FROM ` + role)
	wantProblem(f, s, `may not UPDATE on table "Apps".outbox`, `GRANT UPDATE ON "Apps".outbox TO `+role+";")
}

// Keywords and other names, as schema, table and column.
func TestNamesInHintsAreQuotedIfPostgresNeedsIt(t *testing.T) {
	f := newFixture(t)
	names := tabletest.One[[]string](f, `SELECT array_agg(word) || '{Capital,"a b","a\"b",1a,a1,_x,"",größe}' FROM pg_get_keywords()`)
	for _, name := range names {
		if name == "" {
			continue
		}
		quoted := outbox.Table{Schema: name, Name: name}
		f.Exec(`BEGIN; CREATE SCHEMA ` + outbox.Identifier(name) + `; CREATE TABLE ` + quoted.String() + ` (x int); ALTER TABLE ` + quoted.String() + ` ADD COLUMN ` + outbox.Identifier(name) + ` int`)
		if n := tabletest.One[int](f, `SELECT count(*)::int FROM information_schema.columns WHERE table_schema = $1 AND table_name = $1 AND column_name = $1`, name); n != 1 {
			t.Errorf("%s became another name", quoted)
		}
		f.Exec(`ROLLBACK`)
	}
	if got := (outbox.Table{Schema: "public", Name: "outbox"}).String(); got != "public.outbox" {
		t.Errorf("got %s", got)
	}
}

func TestAnUnreachableDatabaseIsNotReportedAsAProblem(t *testing.T) {
	proxy := services.NewProxy(t, services.SharedPostgres(t).Addr())
	proxy.Refuse()
	url := "postgres://postgres:postgres@" + proxy.Addr() + "/postgres?sslmode=disable"
	s := open(t, url, store.Options{Table: tabletest.Name()})
	if err := s.Check(t.Context()); err == nil || problem.Is(err) {
		t.Errorf("err = %v", err)
	}
}

func TestErrorsDoNotContainThePassword(t *testing.T) {
	_, err := store.Open(pgdial.AddressOf("postgres://user:topsecret@127.0.0.1:notaport/db", ""), store.Options{Table: tabletest.Name()})
	if err == nil || strings.Contains(err.Error(), "topsecret") {
		t.Errorf("err = %v", err)
	}
	s := open(t, "postgres://user:topsecret@127.0.0.1:1/db?sslmode=disable", store.Options{Table: tabletest.Name()})
	if _, _, err := s.LastID(t.Context()); err == nil || strings.Contains(err.Error(), "topsecret") {
		t.Errorf("err = %v", err)
	}
}

package provision

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// secondOutbox creates another outbox in the database, and returns its names: those of the first.
func (f *fixture) secondOutbox(table outbox.Table) Names {
	f.Helper()
	dead := outbox.Table{Schema: table.Schema, Name: table.Name + "_dead_letter"}
	f.Exec(fmt.Sprintf(`CREATE SCHEMA IF NOT EXISTS %s; CREATE TABLE %s (id bigint); CREATE TABLE %s (id bigint); CREATE TABLE IF NOT EXISTS outbox_dead_letter (id bigint)`,
		outbox.QuoteIdentifier(table.Schema), table.SQL(), dead.SQL()))
	second := f.names
	second.Table = table
	return second
}

// objects are the slots and the tables of publications.
func (f *fixture) objects() string {
	return f.Value(`SELECT concat_ws(' ', (SELECT string_agg(slot_name, ' ' ORDER BY slot_name) FROM pg_replication_slots WHERE database = current_database()),
		(SELECT string_agg(pubname || '=' || schemaname || '.' || tablename, ' ' ORDER BY pubname, schemaname, tablename) FROM pg_publication_tables))`)
}

func TestASecondOutboxDoesNotTakeTheNamesOfTheFirst(t *testing.T) {
	f := newFixture(t)
	f.mustSetUp(f.names)
	for _, table := range []outbox.Table{
		{Schema: "billing", Name: "outbox"},
		{Schema: "public", Name: "outbox2"},
		{Schema: "Billing", Name: "The outbox"},
		{Schema: "public", Name: "outbox_dead"},
		{Schema: "it's", Name: `a "table"`},
	} {
		second := f.secondOutbox(table)
		before := f.objects()
		ask := func() error { return CheckNames(t.Context(), f.Conn.PgConn(), second) }
		setup := func() error {
			_, err := f.setup(second)
			return err
		}
		teardown := func() error {
			_, err := Teardown(t.Context(), f.Conn.PgConn(), second)
			return err
		}
		own := second.OwnSetup()
		for what, does := range map[string]func() error{"ask": ask, "setup": setup, "teardown": teardown} {
			err := does()
			if err == nil {
				t.Fatalf("%s of %s took the names of the first outbox", what, table)
			}
			f.wantProblem(err, "publication "+outbox.Identifier(f.names.Publication)+" publishes public.outbox, and not "+table.String(), own)
		}
		name := ownName(table)
		second.Publication = name
		for what, does := range map[string]func() error{"ask": ask, "teardown": teardown} {
			if err := does(); err == nil {
				t.Fatalf("%s of %s took the slot of the first outbox", what, table)
			}
		}
		if after := f.objects(); after != before {
			t.Errorf("%s: slots and publications were %s, are %s", table, before, after)
		}
		second.Slot = name
		f.wantLines(f.mustSetUp(second), "created publication "+name+" for table "+table.String(), "created slot "+name)
		f.wantLines(f.mustSetUp(second))
		if err := ask(); err != nil {
			t.Error(err)
		}
		if err := teardown(); err != nil {
			t.Error(err)
		}
		if after := f.objects(); after != before {
			t.Errorf("%s: slots and publications were %s, are %s", table, before, after)
		}
	}
}

// A publication may have been shared by hand. Then the end of one outbox is not the end of the other.
func TestTeardownLeavesASharedPublicationToTheOtherOutbox(t *testing.T) {
	f := newFixture(t)
	f.mustSetUp(f.names)
	second := f.secondOutbox(outbox.Table{Schema: "billing", Name: "outbox"})
	f.Exec(`ALTER PUBLICATION ` + f.names.Publication + ` ADD TABLE billing.outbox`)
	second.Slot += "_2"
	f.wantLines(f.mustSetUp(second), "created slot "+second.Slot)
	done, err := Teardown(t.Context(), f.Conn.PgConn(), second)
	if err != nil || !slices.Contains(done, "removed table billing.outbox from publication "+f.names.Publication+", which also publishes public.outbox") {
		t.Errorf("%q, %v", done, err)
	}
	if left := f.objects(); left != f.names.Slot+" "+f.names.Publication+"=public.outbox" {
		t.Errorf("left is %s", left)
	}
	f.wantLines(f.mustSetUp(f.names))
}

func TestOwnNamesDiffer(t *testing.T) {
	tables := []outbox.Table{
		{Schema: "public", Name: "outbox"},
		{Schema: "billing", Name: "outbox"},
		{Schema: "public", Name: "billing_outbox"},
		{Schema: "billing_public", Name: "outbox"},
		{Schema: "billing", Name: "public_outbox"},
		{Schema: "public_billing", Name: "outbox"},
		{Schema: "Billing", Name: "outbox"},
		{Schema: "ärger", Name: "outbox"},
		{Schema: "öffnen", Name: "outbox"},
		{Schema: "s", Name: strings.Repeat("long", 15)},
		{Schema: "s", Name: strings.Repeat("long", 14) + "er"},
		{Schema: strings.Repeat("s", 63), Name: "outbox"},
		{Schema: "a b", Name: "c"},
		{Schema: "a", Name: "b\nc"},
	}
	seen := make(map[string]outbox.Table)
	for _, table := range tables {
		name := ownName(table)
		if other, is := seen[name]; is {
			t.Errorf("%s and %s are both %s", table, other, name)
		}
		seen[name] = table
		if len(name) > 40 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
			t.Errorf("%s: the name is %q", table, name)
		}
	}
	if name := ownName(tables[1]); name != "cdc_relay_billing_outbox" {
		t.Errorf("the name is %s", name)
	}
}

// An object with our name is ours only if its owner is right.
func TestAPublicationOfAStrangerIsNotUsed(t *testing.T) {
	f := newFixture(t)
	role, _ := f.Role("")
	f.Exec(`CREATE PUBLICATION ` + f.names.Publication)
	f.Exec(`ALTER ROLE ` + role + ` SUPERUSER`)
	f.Exec(`ALTER PUBLICATION ` + f.names.Publication + ` OWNER TO ` + role)
	f.Exec(`ALTER ROLE ` + role + ` NOSUPERUSER`)
	_, err := f.setup(f.names)
	f.wantProblem(err, `belongs to role `+role+`, which is not trusted`, `if it may belong to that role`)
}

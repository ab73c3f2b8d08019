package provision

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/streamtest"
)

// newSharded returns a fixture with keys, and the names of each shard.
func newSharded(t *testing.T, n int) (*fixture, []Names) {
	t.Helper()
	f := newFixture(t)
	f.Exec(`ALTER TABLE outbox ADD COLUMN ordering_key text`)
	return f, f.split(n)
}

// split returns the names of all shards, under short names.
func (f *fixture) split(n int) (all []Names) {
	for _, shard := range outbox.ShardsOf(n) {
		all = append(all, NamesOf(f.names.Table, f.names.Publication, f.names.Slot, shard))
	}
	return all
}

// The relay recognises each server's printed form of the row filter: the second run changes nothing.
func TestSetupOfShardsCreatesMissingObjectsOnce(t *testing.T) {
	f, all := newSharded(t, 3)
	for _, names := range all {
		f.wantLines(f.mustSetUp(names), `created publication `+names.Publication+` for table public.outbox`, "created slot "+names.Slot)
		f.wantLines(f.mustSetUp(names))
		if want := fmt.Sprintf("%s_%d_of_3", f.names.Slot, names.Shard.Index); names.Slot != want || !names.Sibling(all[0].Slot) {
			t.Errorf("slot %s, want %s", names.Slot, want)
		}
	}
	done, err := Teardown(t.Context(), f.Conn.PgConn(), all...)
	if err != nil || len(done) != 6 {
		t.Errorf("%q, %v", done, err)
	}
}

// The stream of exactly one shard brings each row: the shard whose condition is true in a query.
func TestEachRowStreamsInOneShard(t *testing.T) {
	for _, n := range []int{2, 3, 5} {
		f, all := newSharded(t, n)
		listeners := make([]*streamtest.Listener, n)
		for i, names := range all {
			f.names = names
			f.mustSetUp(names)
			listeners[i] = f.listen()
		}
		// The second round finds rows that came too often in the first.
		for _, ids := range []string{`generate_series(-500, 500)`, `generate_series(501, 600)`, `unnest('{-9223372036854775808, 9223372036854775807}'::bigint[])`} {
			f.Exec(`INSERT INTO outbox SELECT i, CASE i % 3 WHEN 0 THEN 'key ' || i WHEN 1 THEN 'ключ ' || i % 7 END FROM ` + ids + ` i`)
			total := 0
			for i, names := range all {
				var want []int64
				err := f.Conn.QueryRow(t.Context(), `SELECT coalesce(array_agg(id ORDER BY id), '{}') FROM outbox WHERE id IN (SELECT `+ids+`) AND `+
					names.Shard.Condition("outbox.")).Scan(&want)
				must(t, err)
				got := f.rows(listeners[i], len(want))
				slices.Sort(got)
				if total += len(want); !slices.Equal(got, want) {
					t.Errorf("shard %s streams %v, want %v", names.Shard, got, want)
				}
			}
			if rows := f.Value(`SELECT count(*) FROM ` + ids + ` i`); rows != fmt.Sprint(total) {
				t.Errorf("%d of %s rows are in a shard", total, rows)
			}
		}
	}
}

func (f *fixture) rows(l *streamtest.Listener, n int) (ids []int64) {
	f.Helper()
	for len(ids) < n {
		select {
		case id := <-l.Messages:
			ids = append(ids, int64(binary.BigEndian.Uint64([]byte(id))))
		case err := <-l.Done:
			f.Fatalf("the stream ended: %v", err)
		case <-time.After(await.Hang()):
			f.Fatalf("%d rows came, want %d", len(ids), n)
		}
	}
	return ids
}

func TestARowFilterOfAnotherShardIsRejected(t *testing.T) {
	f, all := newSharded(t, 4)
	names := all[1]
	for filter, what := range map[string]string{
		"": "publishes all rows of table public.outbox, not only those of shard 1/4",
		" WHERE (" + all[2].Shard.Condition("") + ")": "has another row filter",
		" WHERE (id > 0)": "has another row filter",
		" WHERE (" + names.Shard.Condition("") + " OR id = 7)": "has another row filter",
	} {
		f.Exec(`CREATE PUBLICATION "` + names.Publication + `" FOR TABLE outbox` + filter + ` WITH (publish = 'insert', publish_via_partition_root = true)`)
		_, err := f.setup(names)
		fix := `ALTER PUBLICATION ` + names.Publication + ` SET TABLE public.outbox WHERE (`
		f.wantProblem(err, what, fix)
		fault, err := PublicationFaulty(t.Context(), f.Conn.PgConn(), names)
		if err != nil || !strings.Contains(fault, "row filter") {
			t.Errorf("%q: %q, %v", filter, fault, err)
		}
		f.Exec(fix + names.Shard.Condition("") + ")") // the hint must fix it
		f.wantLines(f.mustSetUp(names), "created slot "+names.Slot)
		_, err = Teardown(t.Context(), f.Conn.PgConn(), names)
		must(t, err)
	}
	f.Exec(`CREATE PUBLICATION "` + names.Publication + `" FOR TABLE other WITH (publish = 'insert', publish_via_partition_root = true)`)
	f.wantLines(f.mustSetUp(names), `added table public.outbox to publication `+names.Publication, "created slot "+names.Slot)
	f.wantLines(f.mustSetUp(names))
}

func TestADifferentNumberOfShardsIsRejectedWhileOneStreams(t *testing.T) {
	f, four := newSharded(t, 4)
	whole, two := f.split(1)[0], f.split(2)
	refused := func(names Names, slot, teardown string) {
		t.Helper()
		before := f.Value(`SELECT count(*) FROM pg_publication`)
		_, err := f.setup(names)
		f.wantProblem(err, slot+" (in use)", teardown)
		streamed := f.names
		f.names = names
		_, _, opened := f.openAs(f.URL)
		f.names = streamed
		if !errors.Is(err, ErrOtherSplit) || !errors.Is(opened, ErrOtherSplit) {
			t.Errorf("%v, %v", err, opened)
		}
		if after := f.Value(`SELECT count(*) FROM pg_publication`); after != before {
			t.Errorf("%s publications, want %s", after, before)
		}
	}
	f.names = four[3]
	l := f.listen()
	for _, names := range []Names{whole, two[1]} {
		refused(names, four[3].Slot, "cdc-relay teardown --shards 4 --slot '"+whole.Slot+"'")
	}
	f.mustSetUp(four[0]) // its siblings do not count
	l.Stop()
	must(t, f.WantEnd(l))
	l.Close()
	f.Await(`SELECT NOT bool_or(active) FROM pg_replication_slots WHERE database = current_database()`)
	f.names = whole // nobody uses the others now
	f.listen()
	refused(four[0], whole.Slot, "cdc-relay teardown --slot")
	rival := whole
	rival.Slot = "other"
	f.wantProblem(CheckSplit(t.Context(), f.Conn.PgConn(), rival), "is streamed from slot "+whole.Slot, "the same --slot")
}

func TestShardSlotsAreRecognisedByName(t *testing.T) {
	for slot, want := range map[string]int{
		"cdc": 1, "cdc_0_of_4": 4, "cdc_3_of_4": 4, "cdc_4_of_4": 0, "cdc_0_of_4x": 0, "cdc_00_of_4": 0, "cdc0_of_4": 0,
		"cdc_billing": 0, "cdcx": 0, "billing": 0, "cdc_0_of_1": 0, "cdc_0_of_": 0,
	} {
		if got := shardsInName("cdc", slot); got != want {
			t.Errorf("%s: %d, want %d", slot, got, want)
		}
	}
}

func TestAUserDefinedCollationIsAProblem(t *testing.T) {
	f, all := newSharded(t, 2)
	f.Exec(`CREATE COLLATION mine (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`)
	f.Exec(`ALTER TABLE outbox ALTER COLUMN ordering_key TYPE text COLLATE mine`)
	_, err := f.setup(all[0])
	f.wantProblem(err, "cannot create or change publication", `ALTER TABLE public.outbox ALTER COLUMN ordering_key TYPE text COLLATE "default"`)
}

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

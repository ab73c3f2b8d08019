package provision

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/replication"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func TestSetupCreatesMissingObjectsOnce(t *testing.T) {
	f := newFixture(t)
	f.wantLines(f.mustSetUp(f.names), `created publication `+f.names.Publication+` for table public.outbox`, "created slot "+f.names.Slot)
	f.wantLines(f.mustSetUp(f.names))
	if got := f.Value(`SELECT concat(pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot) FROM pg_publication`); got != "tffft" {
		t.Errorf("insert, update, delete, truncate, via root = %s", got)
	}
	stream, done := f.open()
	f.wantLines(done)
	stream.Close()
}

func TestSetupRepairsThePublication(t *testing.T) {
	for _, c := range []struct{ sql, done string }{
		{`CREATE PUBLICATION %s WITH (publish_via_partition_root = true)`, `added table public.outbox to publication %s`},
		{`CREATE PUBLICATION %s FOR TABLE other WITH (publish_via_partition_root = true)`, `added table public.outbox to publication %s`},
		{`CREATE PUBLICATION %s FOR TABLE outbox WITH (publish = 'update, delete', publish_via_partition_root = true)`, `set publish = 'insert' on publication %s`},
		{`CREATE PUBLICATION %s FOR TABLE outbox WITH (publish = 'insert')`, `set publish_via_partition_root = true on publication %s`},
		{`CREATE PUBLICATION %s FOR ALL TABLES WITH (publish = 'insert, delete')`, `set publish_via_partition_root = true on publication %s`},
		{`CREATE PUBLICATION %s FOR ALL TABLES WITH (publish_via_partition_root = true)`, ``},
		{`CREATE PUBLICATION %s FOR TABLE other WITH (publish = 'update')`, `set publish = 'insert' on publication %s, ` +
			`set publish_via_partition_root = true on publication %s, added table public.outbox to publication %s`},
	} {
		t.Run(c.sql, func(t *testing.T) {
			f := newFixture(t)
			fill := func(s string) string { return strings.ReplaceAll(s, "%s", f.names.Publication) }
			f.Exec(fill(c.sql))
			deletes := f.Value(`SELECT bool_or(pubdelete) FROM pg_publication`)
			line, err := ensurePublication(t.Context(), f.Conn.PgConn(), f.names)
			if err != nil || !strings.Contains(line, fill(c.done)) || (c.done == "") != (line == "") {
				t.Fatalf("%q, %v", line, err)
			}
			if line, err := ensurePublication(t.Context(), f.Conn.PgConn(), f.names); line != "" || err != nil {
				t.Errorf("again: %q, %v", line, err)
			}
			// Settings that others may rely on stay.
			if now := f.Value(`SELECT pubdelete FROM pg_publication`); now != deletes && !strings.Contains(c.sql, "'update") {
				t.Errorf("publishes deletes: %s, was %s", now, deletes)
			}
			l := f.listen()
			f.Exec(`INSERT INTO outbox VALUES (49)`)
			f.WantInserted(l, "1")
		})
	}
}

func TestRowFilterAndColumnListAreRejected(t *testing.T) {
	for sql, what := range map[string]string{
		`outbox WHERE (id > 5)`: "has a row filter on table public.outbox",
		`outbox (id)`:           "has a column list on table public.outbox",
	} {
		f := newFixture(t)
		f.Exec(`CREATE PUBLICATION ` + f.names.Publication + ` FOR TABLE ` + sql + ` WITH (publish = 'insert', publish_via_partition_root = true)`)
		_, err := f.setup(f.names)
		fix := `ALTER PUBLICATION ` + f.names.Publication + ` SET TABLE public.outbox`
		f.wantProblem(err, what, fix)
		f.Exec(fix) // the hint must fix it
		f.wantLines(f.mustSetUp(f.names), "created slot "+f.names.Slot)
	}
}

func TestMissingTableIsAProblem(t *testing.T) {
	f := newFixture(t)
	f.names.Table.Name = "missing"
	_, err := f.setup(f.names)
	f.wantProblem(err, "table public.missing does not exist", "cdc-relay setup --table 'public.missing'")
	if f.Slot("slot_name") != "" {
		t.Error("a slot was created")
	}
}

func TestForeignSlotsAreRejected(t *testing.T) {
	f := newFixture(t)
	elsewhere := f.Open(services.Database(t))
	create := func(sql string) { f.Exec(strings.ReplaceAll(sql, "%s", f.names.Slot)) }
	for _, c := range []struct {
		what string
		make func()
	}{
		{`is not a pgoutput slot (plugin "test_decoding")`, func() { create(`SELECT pg_create_logical_replication_slot('%s', 'test_decoding')`) }},
		{`is not a pgoutput slot, but a physical one`, func() { create(`SELECT pg_create_physical_replication_slot('%s')`) }},
		{`belongs to another database`, func() {
			_, err := slot.Query(t.Context(), elsewhere, slot.CreateSQL(f.names.Slot, slot.Options{}))
			must(t, err)
		}},
	} {
		c.make()
		drop := "SELECT pg_catalog.pg_drop_replication_slot('" + f.names.Slot + "');"
		fix := drop
		if c.what == "belongs to another database" { // somebody there may need it
			fix = "# choose another name with --slot"
		}
		_, err := f.setup(f.names)
		f.wantProblem(err, c.what, fix)
		f.wantProblem(err, c.what, drop)
		_, _, err = f.openAs(f.URL)
		f.wantProblem(err, c.what, "--slot")
		_, err = Teardown(t.Context(), f.Conn.PgConn(), f.names)
		f.wantProblem(err, c.what, fix)
		if f.Slot("slot_name") == "" {
			t.Fatal("a foreign slot was dropped")
		}
		_, err = slot.Query(t.Context(), elsewhere, drop)
		must(t, err)
	}
}

// A slot has a name for a moment before it has a plugin.
func TestASlotUnderCreationIsNotForeign(t *testing.T) {
	f := newFixture(t)
	reader := f.Open(f.URL)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 300 {
			for _, sql := range []string{slot.CreateSQL(f.names.Slot, slot.Options{}), slot.DropSQL(f.names.Slot)} {
				if _, err := slot.Query(t.Context(), f.Conn.PgConn(), sql); err != nil {
					t.Errorf("%s: %v", sql, err)
					return
				}
			}
		}
	}()
	for making := true; making; {
		select {
		case <-done:
			making = false
		default:
			if _, err := readOwnSlot(t.Context(), reader, f.names.Slot); err != nil {
				t.Errorf("during its creation: %v", err)
				<-done
				return
			}
		}
	}
}

func TestInvalidSlotNameIsAProblem(t *testing.T) {
	f := newFixture(t)
	f.names.Slot = "My'Slot"
	_, err := f.setup(f.names)
	f.wantProblem(err, "My'Slot", "--slot")
}

func TestNamesMayContainAnyCharacter(t *testing.T) {
	f := newFixture(t)
	f.Exec(`CREATE SCHEMA "My ""Schema"`)
	f.Exec(`CREATE TABLE "My ""Schema"."Out'box\" (id bigint)`)
	f.names.Table = outbox.Table{Schema: `My "Schema`, Name: `Out'box\`}
	f.names.Publication = `Pub, "lic'\ ation`
	f.names.Slot = "1st_" + f.names.Slot[:20]
	f.mustSetUp(f.names)
	f.wantLines(f.mustSetUp(f.names))
	l := f.listen()
	f.Exec(`INSERT INTO "My ""Schema"."Out'box\" VALUES (49)`)
	f.WantInserted(l, "1")
	l.Stop()
	if err := f.WantEnd(l); err != nil {
		t.Error(err)
	}
	l.Close()
	done, err := Teardown(t.Context(), f.Conn.PgConn(), f.names)
	if err != nil || len(done) != 2 {
		t.Errorf("did %q, %v", done, err)
	}
}

func TestTeardownDropsExistingObjectsOnce(t *testing.T) {
	f := newFixture(t)
	f.mustSetUp(f.names)
	done, err := Teardown(t.Context(), f.Conn.PgConn(), f.names)
	must(t, err)
	f.wantLines(done, "dropped slot "+f.names.Slot, `dropped publication `+f.names.Publication)
	done, err = Teardown(t.Context(), f.Conn.PgConn(), f.names)
	if err != nil || done != nil {
		t.Errorf("again: %q, %v", done, err)
	}
}

// The server process of its connection ends a little later.
func TestTeardownWaitsForARelayThatWasJustStopped(t *testing.T) {
	f := newFixture(t)
	l := f.listen()
	ended := make(chan struct{})
	time.AfterFunc(300*time.Millisecond, func() { // how much later
		defer close(ended)
		l.Stop()
		<-l.Done
		l.Close()
	})
	done, err := Teardown(t.Context(), f.Conn.PgConn(), f.names)
	if err != nil || len(done) != 2 {
		t.Errorf("did %q, %v", done, err)
	}
	<-ended
}

func TestTeardownRejectsASlotInUse(t *testing.T) {
	f := newFixture(t)
	f.listen()
	_, err := Teardown(t.Context(), f.Conn.PgConn(), f.names)
	f.wantProblem(err, "in use by Postgres process "+f.Slot("active_pid"), "stop the relays")
	if f.Value(`SELECT pubname FROM pg_publication`) == "" {
		t.Error("the publication was dropped")
	}
}

func TestSetupSQLRunsInPsql(t *testing.T) {
	f := newFixture(t)
	f.Exec(`CREATE TABLE "Out'box\" (id bigint)`)
	f.names.Table.Name, f.names.Publication = `Out'box\`, `Pub "lic'\`
	tabletest.Psql(t, f.URL, SetupSQL(f.names))
	f.wantLines(f.mustSetUp(f.names))
}

func TestSetupAcceptsAConcurrentlyCreatedPublication(t *testing.T) {
	f := newFixture(t)
	tx := tabletest.Begin(t, tabletest.Connect(t, f.URL), createPublicationSQL(f.names))
	type answer struct {
		line string
		err  error
	}
	answers := make(chan answer, 1)
	second := f.Open(f.URL)
	go func() {
		line, err := ensurePublication(t.Context(), second, f.names)
		answers <- answer{line, err}
	}()
	f.Await(fmt.Sprintf(`SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = %d AND wait_event_type = 'Lock'`, second.PID()))
	tabletest.End(t, tx.Commit)
	if got := <-answers; got != (answer{}) {
		t.Errorf("%q, %v", got.line, got.err)
	}
}

func TestSlotCreationNamesTheTransactionItWaitsFor(t *testing.T) {
	f := newFixture(t)
	blocker := tabletest.Connect(t, f.URL)
	tx := tabletest.Begin(t, blocker, `INSERT INTO other VALUES (1)`)
	role, address := f.Role("REPLICATION") // this role sees little of others
	f.Exec(`ALTER ROLE ` + role + ` SET lock_timeout = '10ms'`)
	conn := f.Open(address)
	session := "Postgres process " + f.Value(`SELECT pid FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND datname = current_database()`)
	await.Until(t, "the error names the transaction, once it is one of the five oldest on the server", func() bool {
		_, err := ensureSlot(t.Context(), conn, f.names, 100*time.Millisecond)
		var blocked *SlotBlockedError
		if !errors.As(err, &blocked) || blocked.Hint() == "" || blocked.Slot != f.names.Slot {
			t.Fatalf("err = %v", err)
		}
		return strings.Contains(err.Error(), session)
	})
	if rows, err := slot.Query(t.Context(), conn, "SHOW statement_timeout; SHOW lock_timeout"); err != nil || rows[0][0] != "0" || rows[1][0] != "10ms" {
		t.Errorf("statement_timeout and lock_timeout stay at %v, %v", rows, err)
	}
	tabletest.End(t, tx.Rollback)
	if line, err := ensureSlot(t.Context(), conn, f.names, await.Hang()); line == "" || err != nil {
		t.Errorf("%q, %v", line, err)
	}
}

func TestATableThatCannotStreamHasAReason(t *testing.T) {
	f := newFixture(t)
	f.Exec(`ALTER TABLE outbox SET UNLOGGED`)
	_, err := ensurePublication(t.Context(), f.Conn.PgConn(), f.names)
	f.wantProblem(err, "table public.outbox is UNLOGGED: its rows are not in the WAL", "ALTER TABLE public.outbox SET LOGGED;")
	f.Exec(`ALTER TABLE outbox RENAME TO o; CREATE VIEW outbox AS SELECT * FROM o`)
	_, err = ensurePublication(t.Context(), f.Conn.PgConn(), f.names)
	f.wantProblem(err, "cannot create or change publication", "cdc-relay check")
}

func TestWalLevelReplicaIsAProblem(t *testing.T) {
	services.Thorough(t, "starts its own server")
	server := services.PrivatePostgres(t, "wal_level=replica")
	f := onDatabase(t, server.URL(""))
	_, err := f.setup(f.names)
	if server.Major() >= 19 { // the slot raises the effective level
		if err != nil {
			t.Errorf("setup: %v", err)
		}
		return
	}
	f.wantProblem(err, "wal_level = replica", "ALTER SYSTEM SET wal_level = 'logical'")
	_, _, err = f.openAs(f.URL)
	f.wantProblem(err, "wal_level = replica", "--mode poll")
	if f.Value(`SELECT pubname FROM pg_publication`) != "" {
		t.Error("a publication was created")
	}
}

func TestRoleWithoutReplicationIsNamed(t *testing.T) {
	f := newFixture(t)
	role, address := f.Role("")
	_, _, err := f.openAs(address)
	f.wantProblem(err, `role `+role+` may not replicate`, `ALTER ROLE `+role+` REPLICATION`)
	f.Exec(`CREATE PUBLICATION ` + f.names.Publication + ` FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)`)
	_, err = Setup(t.Context(), f.Open(address), f.names, await.Hang())
	f.wantProblem(err, `role `+role+` may not replicate`, `ALTER ROLE `+role+` REPLICATION`)
}

func TestRoleWithoutCreateGetsTheStatementForThePublication(t *testing.T) {
	f := newFixture(t)
	_, address := f.Role("REPLICATION")
	_, _, err := f.openAs(address)
	f.wantProblem(err, "permission denied", `CREATE PUBLICATION `+f.names.Publication+` FOR TABLE public.outbox`)
	if f.Slot("slot_name") != "" {
		t.Error("a slot was created")
	}
}

func TestRoleWithReplicationAloneStreams(t *testing.T) {
	f := newFixture(t)
	f.mustSetUp(f.names)
	_, address := f.Role("REPLICATION")
	stream, done, err := f.openAs(address)
	if err != nil || done != nil {
		t.Fatalf("did %q, %v", done, err)
	}
	l := f.Run(stream)
	f.Exec(`INSERT INTO outbox VALUES (49)`)
	f.WantInserted(l, "1")
}

// As if the server had been restored from an older backup, or a client had confirmed what never was.
func TestSlotAheadOfTheServerIsRecreated(t *testing.T) {
	f := newFixture(t)
	for i, ahead := range []pglogrepl.LSN{1 << 40, 1<<63 - 1, 1 << 63, math.MaxUint64 - 1<<40} {
		l := f.listen()
		l.Stop()
		f.WantEnd(l)
		err := pglogrepl.SendStandbyStatusUpdate(t.Context(), l.Conn(), pglogrepl.StandbyStatusUpdate{WALWritePosition: l.At + ahead})
		must(t, err)
		f.Await(`SELECT confirmed_flush_lsn > pg_current_wal_flush_lsn() FROM pg_replication_slots WHERE slot_name = '` + f.names.Slot + `'`)
		if s, err := slot.Read(t.Context(), f.Conn.PgConn(), f.names.Slot); err != nil || s.LagBytes != 0 {
			t.Errorf("an active slot lags by %d bytes; %v", s.LagBytes, err)
		}
		l.Close()
		f.Await(`SELECT NOT active FROM pg_replication_slots WHERE slot_name = '` + f.names.Slot + `'`)
		stream, done := f.open()
		if len(done) != 2 || !strings.Contains(done[0], "ahead of the server's WAL") {
			t.Errorf("%s ahead: did %q", ahead, done)
		}
		l = f.Run(stream)
		f.Exec(fmt.Sprintf(`INSERT INTO outbox VALUES (%d)`, 48+i))
		f.WantInserted(l, fmt.Sprint(i))
		l.Stop()
		f.WantEnd(l)
		l.Close()
		f.Await(`SELECT NOT active FROM pg_replication_slots WHERE slot_name = '` + f.names.Slot + `'`)
	}
}

// The role sees since when only its own transactions are open. A relay's transaction ends by itself.
func TestSlotCreationNamesTheOldestStranger(t *testing.T) {
	server := services.PrivatePostgres(t, "max_prepared_transactions=1")
	f := onDatabase(t, server.URL(""))
	f.Exec(`CREATE ROLE creates REPLICATION; GRANT INSERT ON other TO creates`)
	begin := func(set string) *pgx.Conn {
		conn := tabletest.Connect(t, f.URL)
		tabletest.Run(t, conn, set+`; BEGIN; INSERT INTO other VALUES (1)`)
		return conn
	}
	begin(`SET application_name = 'cdc-relay'`)
	oldest := begin(`SET application_name = 'a report'`)
	f.Exec(`BEGIN; INSERT INTO other VALUES (1); PREPARE TRANSACTION 'left behind'`)
	newest := begin(`SET ROLE creates`)
	f.Exec(`SET ROLE creates`)
	wait := func(says ...string) {
		t.Helper()
		_, err := ensureSlot(t.Context(), f.Conn.PgConn(), f.names, 100*time.Millisecond)
		var blocked *SlotBlockedError
		if !errors.As(err, &blocked) || len(blocked.Blockers) != len(says)-1 || !strings.Contains(blocked.Hint(), says[0]) {
			t.Fatalf("err = %v, the hint is %q", err, problem.Hint(err))
		}
		for i, says := range says[1:] {
			if !strings.HasPrefix(blocked.Blockers[i].String(), says) {
				t.Errorf("%d is %s, want %s", i, blocked.Blockers[i], says)
			}
		}
	}
	pid := func(conn *pgx.Conn) string { return fmt.Sprintf("Postgres process %d (", conn.PgConn().PID()) }
	prepared := "prepared transaction 'left behind' ("
	wait(fmt.Sprintf("pg_terminate_backend(%d)", oldest.PgConn().PID()), pid(oldest)+"postgres, a report)", prepared, pid(newest))
	tabletest.End(t, oldest.Close)
	wait("ROLLBACK PREPARED 'left behind'", prepared, pid(newest))
	tabletest.End(t, newest.Close)
	f.Exec(`RESET ROLE`)
	f.Exec(`ROLLBACK PREPARED 'left behind'`)
	if _, err := ensureSlot(t.Context(), f.Conn.PgConn(), f.names, 100*time.Millisecond); err == nil || !strings.HasPrefix(problem.Hint(err), "# wait") {
		t.Errorf("for a relay: %v, hint %q", err, problem.Hint(err))
	}
}

func TestPublicationDroppedDuringTheStreamIsRecreated(t *testing.T) {
	f := newFixture(t)
	l := f.listen()
	f.Exec(`DROP PUBLICATION ` + f.names.Publication)
	f.Exec(`INSERT INTO outbox VALUES (49)`)
	if err := f.WantEnd(l); !replication.PublicationGone(err) {
		t.Fatalf("err = %v", err)
	}
	l.Close()
	again := f.listen()
	f.Exec(`INSERT INTO outbox VALUES (50)`)
	f.WantInserted(again, "2")
}

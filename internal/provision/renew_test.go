package provision

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// fallBehind makes the server write so much WAL that a slot is far behind. A segment switch leaves the rest of its 16
// MB empty.
func (f *fixture) fallBehind() {
	f.Helper()
	for range farBehind/(16<<20) + 1 {
		f.Exec(`SELECT pg_switch_wal() FROM pg_logical_emit_message(true, 'other', 'x')`)
	}
}

func (f *fixture) isFarBehind() bool {
	f.Helper()
	return f.Slot(fmt.Sprintf(`pg_current_wal_flush_lsn() - restart_lsn > %d`, farBehind)) == "t"
}

// No slot is free, or an open transaction would delay a new one.
func TestSlotFarBehindStaysIfItCannotBeRecreatedAtOnce(t *testing.T) {
	services.Thorough(t, "starts its own server")
	f := onDatabase(t, services.PrivatePostgres(t, "max_replication_slots=2").URL(""))
	f.mustSetUp(f.names)
	f.fallBehind()
	stays := func() {
		t.Helper()
		stream, done := f.open()
		if f.wantLines(done); !f.isFarBehind() {
			t.Error("the slot was recreated")
		}
		stream.Close()
	}
	tx := tabletest.Begin(t, tabletest.Connect(t, f.URL), `INSERT INTO other VALUES (1)`)
	stays()
	tabletest.End(t, tx.Rollback)
	f.Exec(`SELECT pg_create_physical_replication_slot('somebody')`)
	stays()
	if n := f.Value(`SELECT count(*) FROM pg_replication_slots`); n != "2" {
		t.Errorf("there are %s slots", n)
	}
	l := f.listen()
	f.Exec(`INSERT INTO outbox VALUES (49)`)
	f.WantInserted(l, "1")
}

func TestFailoverSlotFarBehindStays(t *testing.T) {
	if services.SharedPostgres(t).Major() < 17 {
		t.Skip("failover slots came with Postgres 17")
	}
	services.Thorough(t, "starts its own server")
	f := onDatabase(t, services.PrivatePostgres(t).URL(""))
	f.Exec(`SELECT pg_create_logical_replication_slot('` + f.names.Slot + `', 'pgoutput', failover => true)`)
	f.mustSetUp(f.names)
	f.fallBehind()
	_, done := f.open()
	f.wantLines(done)
	if f.Slot("failover") != "t" {
		t.Error("the slot is not a failover slot any more")
	}
}

// Afterwards there is one slot, and a relay streams from it.
func TestSlotFarBehindIsRecreated(t *testing.T) {
	services.Thorough(t, "starts its own server")
	f := onDatabase(t, services.PrivatePostgres(t).URL(""))
	f.mustSetUp(f.names)
	f.fallBehind()
	f.Exec(`INSERT INTO outbox VALUES (48)`)
	stream, done := f.open()
	if len(done) != 2 || !strings.HasPrefix(done[0], "dropped slot "+f.names.Slot+": 2") || done[1] != "created slot "+f.names.Slot {
		t.Errorf("did %q", done)
	}
	f.Await(`SELECT count(*) = 1 AND bool_and(NOT active) FROM pg_replication_slots`)
	if f.isFarBehind() {
		t.Error("the slot is far behind")
	}
	l := f.Run(stream)
	f.Exec(`INSERT INTO outbox VALUES (49)`)
	f.WantInserted(l, "1")
}

// A repair restores the options of the slot that it found, also if the slot was dropped by somebody else meanwhile.
func TestARecreatedSlotKeepsItsOptions(t *testing.T) {
	server := services.PrivatePostgres(t, "max_slot_wal_keep_size=1MB")
	f := onDatabase(t, server.URL(""))
	options := func() string { return f.Slot("two_phase") }
	create := `SELECT pg_create_logical_replication_slot('` + f.names.Slot + `', 'pgoutput', twophase => true`
	if server.Major() >= 17 {
		options = func() string { return f.Slot("two_phase") + f.Slot("failover") }
		create += `, failover => true`
	}
	f.Exec(create + `)`)
	want := options()
	for range 3 {
		f.Exec(`SELECT pg_switch_wal() FROM pg_logical_emit_message(true, 'other', 'x')`)
		f.Exec(`CHECKPOINT`)
	}
	f.Await(`SELECT wal_status = 'lost' FROM pg_replication_slots WHERE slot_name = '` + f.names.Slot + `'`)
	if done := f.mustSetUp(f.names); len(done) != 3 || !strings.HasPrefix(done[0], "dropped slot "+f.names.Slot+": invalidated by the server") {
		t.Errorf("did %q", done)
	}
	if got := options(); got != want {
		t.Errorf("after an invalidation the options are %s, want %s", got, want)
	}
	stream, _ := f.open()
	seen, err := stream.Slot(t.Context())
	must(t, err)
	f.names.Found = seen.Options
	stream.Close()
	f.Exec(`SELECT pg_drop_replication_slot('` + f.names.Slot + `')`)
	stream, _, err = f.openAs(f.URL)
	must(t, err)
	stream.Close()
	if got := options(); got != want {
		t.Errorf("after it was dropped the options are %s, want %s", got, want)
	}
}

func TestSetupCreatesAFailoverSlot(t *testing.T) {
	server := services.PrivatePostgres(t)
	f := onDatabase(t, server.URL(""))
	f.mustSetUp(f.names)
	f.names.Failover = true
	if server.Major() < 17 {
		_, err := f.setup(f.names)
		f.wantProblem(err, "they need 17 or later", "leave out --failover-slot")
		f.wantProblem(CheckBefore(t.Context(), f.Conn.PgConn(), f.names), "they need 17 or later", "upgrade")
		return
	}
	f.wantLines(f.mustSetUp(f.names), "dropped slot "+f.names.Slot+": it is no failover slot", "created failover slot "+f.names.Slot)
	f.wantLines(f.mustSetUp(f.names))
	if f.Slot("failover") != "t" {
		t.Error("the slot is no failover slot")
	}
	f.names.Failover = false // a failover slot stays one
	f.wantLines(f.mustSetUp(f.names))
	if f.Slot("failover") != "t" {
		t.Error("the slot is no failover slot any more")
	}
}

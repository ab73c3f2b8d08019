package provision

import (
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/services"
)

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

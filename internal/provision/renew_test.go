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

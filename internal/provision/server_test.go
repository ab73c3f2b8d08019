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
	"github.com/cdc-relay/cdc-relay/replication"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

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

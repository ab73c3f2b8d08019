package replication

import (
	"fmt"
	"math"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

func TestWalLevelReplicaIsAProblem(t *testing.T) {
	services.Thorough(t, "starts its own server")
	server := services.PrivatePostgres(t, "wal_level=replica")
	f := onDatabase(t, server.URL(""))
	_, err := f.setup()
	if server.Major() >= 19 { // the slot raises the effective level
		if err != nil {
			t.Errorf("setup: %v", err)
		}
		return
	}
	f.wantProblem(err, "wal_level = replica", "ALTER SYSTEM SET wal_level = 'logical'")
	_, _, err = Open(t.Context(), pgdial.AddressOf(f.url, ""), f.names, await.Hang())
	f.wantProblem(err, "wal_level = replica", "--mode poll")
	if f.value(`SELECT pubname FROM pg_publication`) != "" {
		t.Error("a publication was created")
	}
}

func TestFullSlotsAreAProblem(t *testing.T) {
	services.Thorough(t, "starts its own server")
	server := services.PrivatePostgres(t, "max_replication_slots=1")
	f := onDatabase(t, server.URL(""))
	f.exec(`SELECT pg_create_physical_replication_slot('somebody')`)
	_, err := f.setup()
	f.wantProblem(err, "no replication slot is free", "max_replication_slots")
	f.exec(`SELECT pg_drop_replication_slot('somebody')`)
	f.mustSetup()
}

func TestRoleWithoutReplicationIsNamed(t *testing.T) {
	f := newFixture(t)
	role, address := f.role("")
	_, _, err := Open(t.Context(), pgdial.AddressOf(address, ""), f.names, await.Hang())
	f.wantProblem(err, `role `+role+` may not replicate`, `ALTER ROLE `+role+` REPLICATION`)
	f.exec(`CREATE PUBLICATION ` + f.names.Publication + ` FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)`)
	_, err = Setup(t.Context(), asPgConn(f, address), f.names, await.Hang())
	f.wantProblem(err, `role `+role+` may not replicate`, `ALTER ROLE `+role+` REPLICATION`)
}

func TestRoleWithoutCreateGetsTheStatementForThePublication(t *testing.T) {
	f := newFixture(t)
	_, address := f.role("REPLICATION")
	_, _, err := Open(t.Context(), pgdial.AddressOf(address, ""), f.names, await.Hang())
	f.wantProblem(err, "permission denied", `CREATE PUBLICATION `+f.names.Publication+` FOR TABLE public.outbox`)
	if f.slot("slot_name") != "" {
		t.Error("a slot was created")
	}
}

func TestRoleWithReplicationAloneStreams(t *testing.T) {
	f := newFixture(t)
	f.mustSetup()
	_, address := f.role("REPLICATION")
	stream, done, err := Open(t.Context(), pgdial.AddressOf(address, ""), f.names, await.Hang())
	if err != nil || done != nil {
		t.Fatalf("did %q, %v", done, err)
	}
	t.Cleanup(stream.Close)
	l := f.run(stream)
	f.exec(`INSERT INTO outbox VALUES (49)`)
	f.wantInserted(l, "1")
}

func TestInvalidatedSlotIsRecreated(t *testing.T) {
	services.Thorough(t, "starts its own server")
	server := services.PrivatePostgres(t, "max_slot_wal_keep_size=1MB", "min_wal_size=32MB", "max_wal_size=32MB")
	f := onDatabase(t, server.URL(""))
	f.mustSetup()
	for range 3 {
		f.exec(`SELECT pg_switch_wal() FROM pg_logical_emit_message(true, 'x', 'x')`)
	}
	f.exec(`CHECKPOINT`)
	if status := f.slot("wal_status"); status != "lost" {
		t.Fatalf("the slot is %s", status)
	}
	stream, done := f.open()
	if len(done) != 2 || !strings.HasPrefix(done[0], "dropped slot "+f.names.Slot+": invalidated by the server") {
		t.Errorf("did %q", done)
	}
	l := f.run(stream)
	f.exec(`INSERT INTO outbox VALUES (49)`)
	f.wantInserted(l, "1")
}

// As if the server had been restored from an older backup, or a client had confirmed what never was.
func TestSlotAheadOfTheServerIsRecreated(t *testing.T) {
	f := newFixture(t)
	for i, ahead := range []pglogrepl.LSN{1 << 40, 1<<63 - 1, 1 << 63, math.MaxUint64 - 1<<40} {
		l := f.listen()
		l.stop()
		f.wantEnd(l)
		if l.received += ahead; l.received < ahead {
			t.Fatal("the position does not fit")
		}
		if err := l.sendStatus(false); err != nil {
			t.Fatal(err)
		}
		f.await(`SELECT confirmed_flush_lsn > pg_current_wal_flush_lsn() FROM pg_replication_slots WHERE slot_name = '` + f.names.Slot + `'`)
		if s, err := slot.Read(t.Context(), f.conn.PgConn(), f.names.Slot); err != nil || s.LagBytes != 0 {
			t.Errorf("an active slot lags by %d bytes; %v", s.LagBytes, err)
		}
		l.Close()
		f.await(`SELECT NOT active FROM pg_replication_slots WHERE slot_name = '` + f.names.Slot + `'`)
		stream, done := f.open()
		if len(done) != 2 || !strings.Contains(done[0], "ahead of the server's WAL") {
			t.Errorf("%s ahead: did %q", ahead, done)
		}
		l = f.run(stream)
		f.exec(fmt.Sprintf(`INSERT INTO outbox VALUES (%d)`, 48+i))
		f.wantInserted(l, fmt.Sprint(i))
		l.stop()
		f.wantEnd(l)
		l.Close()
		f.await(`SELECT NOT active FROM pg_replication_slots WHERE slot_name = '` + f.names.Slot + `'`)
	}
}

func TestFastShutdownIsNotDelayed(t *testing.T) {
	services.Thorough(t, "starts its own server")
	server := services.PrivatePostgres(t)
	f := onDatabase(t, server.URL(""))
	l := f.listen()
	f.exec(`INSERT INTO outbox VALUES (48)`)
	f.wantInserted(l, "0") // from now on the server lets the stream end by itself (replication_active in walsender.c)
	f.exec(`INSERT INTO outbox SELECT generate_series(49, 57)`)
	f.exec(`INSERT INTO other SELECT generate_series(1, 10000)`)
	began := time.Now()
	if err := server.Stop(t.Context(), services.Fast); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the shutdown took %s", took)
	}
	if err := f.wantEnd(l); err == nil {
		t.Error("the stream ended without an error")
	}
	if len(l.messages) != 9 {
		t.Errorf("%d of 9 rows had arrived", len(l.messages))
	}
}

func TestSilentServerEndsTheStream(t *testing.T) {
	f := newFixture(t)
	u, err := url.Parse(f.url)
	if err != nil {
		t.Fatal(err)
	}
	proxy := services.NewProxy(t, u.Host)
	u.Host = proxy.Addr()
	f.mustSetup()
	stream, _, err := Open(t.Context(), pgdial.AddressOf(u.String(), ""), f.names, await.Hang())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stream.Close)
	stream.statusEvery, stream.deadAfter = 50*time.Millisecond, await.Scaled(2*time.Second)
	l := f.run(stream)
	f.exec(`INSERT INTO outbox VALUES (49)`)
	f.wantInserted(l, "1")
	proxy.BlackHole()
	began := time.Now()
	if err := f.wantEnd(l); err == nil || !strings.Contains(err.Error(), "silent") {
		t.Errorf("err = %v", err)
	}
	await.Judge(t, "noticing that the server is silent", time.Since(began), 10*time.Second)
	await.Within(t, "closing the stream", 10*time.Second, stream.Close)
}

func TestIntervalsFollowTheServersTimeout(t *testing.T) {
	for _, c := range []struct{ timeout, status, dead time.Duration }{
		{0, 2 * time.Second, time.Minute},
		{time.Minute, 2 * time.Second, time.Minute},
		{6 * time.Second, time.Second, 10 * time.Second},
		{time.Millisecond, 50 * time.Millisecond, 10 * time.Second},
		{time.Hour, 2 * time.Second, time.Hour},
	} {
		if status, dead := intervals(c.timeout); status != c.status || dead != c.dead {
			t.Errorf("%s: %s, %s", c.timeout, status, dead)
		}
	}
}

func TestSlotCreationNamesPreparedTransactions(t *testing.T) {
	services.Thorough(t, "starts its own server")
	server := services.PrivatePostgres(t, "max_prepared_transactions=1")
	f := onDatabase(t, server.URL(""))
	f.exec(`BEGIN; INSERT INTO other VALUES (1); PREPARE TRANSACTION 'left behind'`)
	_, err := ensureSlot(t.Context(), f.conn.PgConn(), f.names, 100*time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "prepared transaction 'left behind'") {
		t.Errorf("err = %v", err)
	}
	f.exec(`ROLLBACK PREPARED 'left behind'`)
	f.mustSetup()
}

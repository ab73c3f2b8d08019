package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// replicates opens a replication connection with this application_name, until the test ends.
func (w *world) replicates(application string) *pgconn.PgConn {
	w.t.Helper()
	config, err := pgconn.ParseConfig(w.database)
	must(w.t, "parse the address", err)
	config.RuntimeParams["replication"] = "database"
	config.RuntimeParams["application_name"] = application
	conn, err := pgconn.ConnectConfig(w.t.Context(), config)
	must(w.t, "connect for replication", err)
	w.t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// takeSlot lets another program own the slot, as pg_recvlogical or Debezium would: it reports to the server once, and
// then not for a long time.
func (w *world) takeSlot(application string) (pid int) {
	w.t.Helper()
	conn := w.replicates(application)
	err := pglogrepl.StartReplication(w.t.Context(), conn, w.slot, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names '" + w.slot + "'"},
	})
	must(w.t, "start replication", err)
	status := pglogrepl.StandbyStatusUpdate{WALWritePosition: 1}
	must(w.t, "report to the server", pglogrepl.SendStandbyStatusUpdate(w.t.Context(), conn, status))
	w.eventually("the server has received its status", func() bool {
		return value[bool](w, `SELECT EXISTS (SELECT FROM pg_stat_replication WHERE pid = $1 AND reply_time IS NOT NULL)`, conn.PID())
	})
	return int(conn.PID())
}

// The relay publishes from the table meanwhile.
func TestASlotOwnedByAnotherProgramIsReported(t *testing.T) {
	t.Parallel()
	w, arrived := consuming(t)
	pid := w.takeSlot("pg_recvlogical")
	r := w.start()
	w.eventually("the relay is not ready, and says why", func() bool {
		page, status := r.get("/readyz")
		return status == 503 && strings.Contains(page, "is owned by Postgres process") && strings.Contains(page, "pg_recvlogical")
	})
	for _, fields := range []row{nil, {"ordering_key": "k"}, {"ordering_key": "k"}} {
		w.await(arrived, w.insert(fields))
	}
	w.emptied()
	said := linesWith(r.logs(), `"event":"slot_taken"`)
	if len(said) == 0 || !strings.Contains(said[0], "SELECT pg_catalog.pg_terminate_backend(") {
		t.Errorf("the log says %q", said)
	}
	w.fails([]string{"check"}, "which is no relay of table public.outbox")
	if owner := value[int](w, `SELECT coalesce(max(active_pid), 0) FROM pg_replication_slots WHERE slot_name = $1`, w.slot); owner != pid { // it reports rarely, as pg_recvlogical and Debezium do
		t.Errorf("process %d owns the slot, want %d", owner, pid)
	}
	w.exec(`SELECT pg_catalog.pg_terminate_backend($1)`, pid) // as the hint says
	w.eventually("the relay streams", func() bool { return r.says("/readyz", "ready (streaming)\n") })
	w.await(arrived, w.insert(nil))
	arrived.allMarked()
}

// It names the sessions that have locked them.
func TestDrainFailsIfLockedRowsRemain(t *testing.T) {
	t.Parallel()
	w := newWorld(t).setUp()
	w.insertMany(3)
	w.insert(row{"ordering_key": "k"})
	end := w.holding(`SELECT FROM outbox WHERE id <= 2 FOR UPDATE`)
	w.fails([]string{"drain", "--send-timeout", "500ms"}, "due rows remain in public.outbox: 2", "another session has locked them")
	end()
	broker := w.broker
	w.broker = "amqp://guest:guest@" + services.NewProxy(t, "127.0.0.1:1").Addr()
	w.start()
	w.streamed()
	w.broker = broker
	w.fails([]string{"drain", "--send-timeout", "500ms"}, " leads and does not publish them")
}

// The relay publishes from the table until there is room.
func TestRowsLeaveWhileTheServerHasNoRoomForAStream(t *testing.T) {
	t.Parallel()
	server := services.PrivatePostgres(t, "max_replication_slots=1", "max_wal_senders=1")
	for name, full := range map[string]struct {
		says string
		fill func(*world) (room func())
	}{
		"no slot is free": {"no replication slot is free", func(w *world) func() {
			w.exec(`SELECT pg_drop_replication_slot($1)`, w.slot)
			w.exec(`SELECT pg_create_physical_replication_slot('somebody')`)
			return func() { w.exec(`SELECT pg_drop_replication_slot('somebody')`) }
		}},
		"no walsender is free": {"no connection for replication is free", func(w *world) func() {
			conn := w.replicates("somebody")
			return func() { conn.Close(t.Context()) }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldOn(t, server.Database(t), services.VHost(t)).setUp()
			arrived := w.consume(w.queue)
			room := full.fill(w)
			r := w.start()
			w.eventually("the relay is not ready, and says why", func() bool {
				page, status := r.get("/readyz")
				return r.exited() || status == 503 && strings.Contains(page, full.says)
			})
			if r.exited() {
				t.Fatal("the relay has ended")
			}
			w.await(arrived, w.insert(row{"ordering_key": "k"}))
			if lines := linesWith(r.logs(), full.says); len(lines) == 0 || !strings.Contains(lines[0], "raise max_") {
				t.Errorf("the log says %q", lines)
			}
			room()
			began := time.Now()
			w.eventually("the relay streams", func() bool { return r.says("/readyz", "ready (streaming)\n") })
			inTime(t, "streaming after there is room", time.Since(began), 10*time.Second)
			r.stop()
		})
	}
}

// as creates a role with these attributes and grants. Everything started from now on logs in with it.
func (w *world) as(attributes string, grants ...string) (role string) {
	w.t.Helper()
	role = services.Name(w.t)
	w.exec(`CREATE ROLE ` + role + ` LOGIN PASSWORD 'secret' ` + attributes)
	w.t.Cleanup(func() {
		_, _ = w.db.Exec(context.WithoutCancel(w.t.Context()), `DROP OWNED BY `+role+`; DROP ROLE `+role)
	})
	for _, grant := range grants {
		w.exec(`GRANT ` + grant + ` TO ` + role)
	}
	w.database = strings.Replace(w.database, mustURL(w.t, w.database).User.String()+"@", role+":secret@", 1)
	return role
}

// The relay also stops if it learns this only after some sweeps.
func TestARoleWithoutReplicationStopsTheRelayAtStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t).setUp()
	w.as("", "SELECT, UPDATE, DELETE ON outbox", "SELECT ON SEQUENCE outbox_id_seq", "ALL ON outbox_dead_letter, outbox_migrations")
	one, toPostgres := w.behindPostgres()
	toPostgres.Only(services.Replication).Refuse()
	r := one.start()
	r.awaitNotReady(5*time.Second, "stream: not ready, not streaming: stream is down")
	toPostgres.Only(services.Replication).Accept()
	if code := r.exit(); code == 0 {
		t.Errorf("exit code %d", code)
	}
	if log := r.logs(); !strings.Contains(log, "may not replicate") {
		t.Errorf("the log does not say what is missing:\n%s", log)
	}
}

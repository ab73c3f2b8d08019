package slot_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func TestMain(m *testing.M) { services.Main(m) }

func must(t testing.TB, err error) { t.Helper(); services.Must(t, err) }

func table() outbox.Table { return outbox.Table{Schema: "public", Name: "outbox"} }

func connect(t *testing.T, url string, params ...string) *pgconn.PgConn {
	t.Helper()
	config, err := pgconn.ParseConfig(url)
	must(t, err)
	for i := 0; i < len(params); i += 2 {
		config.RuntimeParams[params[i]] = params[i+1]
	}
	conn, err := pgconn.ConnectConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func exec(t *testing.T, conn *pgconn.PgConn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func read(t *testing.T, conn *pgconn.PgConn, name string) slot.Slot {
	t.Helper()
	s, err := slot.Read(t.Context(), conn, name)
	must(t, err)
	return s
}

// stream runs a client with this application_name that streams from a new slot, until the test ends.
func stream(t *testing.T, url, name, application string) {
	t.Helper()
	conn := connect(t, url, "replication", "database", "application_name", application)
	exec(t, conn, "SELECT pg_create_logical_replication_slot('"+name+"', 'pgoutput')")
	err := pglogrepl.StartReplication(t.Context(), conn, name, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names 'none'"},
	})
	must(t, err)
}

func TestTheOwnerOfASlotIsIdentified(t *testing.T) {
	database := services.Database(t)
	asker, elsewhere := connect(t, database), connect(t, services.Database(t))
	for application, relayed := range map[string]bool{
		slot.Application(table()): true, "pg_recvlogical": false, "": false, "cdc-relay stream billing.outbox": false,
	} {
		name := services.Name(t)
		if s := read(t, asker, name); s.Exists() || s.Active() || s.Relayed(table()) || s.Unusable() != nil || s.Taken(table()) != nil {
			t.Errorf("a missing slot: %+v", s)
		}
		stream(t, database, name, application)
		await.Until(t, "the slot is owned", func() bool { return read(t, asker, name).Owner().PID != 0 })
		s := read(t, asker, name)
		if s.Relayed(table()) != relayed || (s.Taken(table()) == nil) != relayed || !s.Here || s.Confirmed == 0 || *s.Process.Application != application {
			t.Errorf("%q: %+v, taken %v", application, s, s.Taken(table()))
		}
		if s := read(t, elsewhere, name); !s.Active() || s.Owner().PID != 0 || s.Relayed(table()) || s.Unusable() == nil {
			t.Errorf("in another database: %+v", s)
		}
	}
}

// A role that sees little of other sessions still distinguishes a relay from another program.
func TestEveryRoleCanIdentifyTheOwnerOfASlot(t *testing.T) {
	database := services.Database(t)
	admin, name := &tabletest.Tables{TB: t, URL: database, Conn: tabletest.Connect(t, database)}, services.Name(t)
	stream(t, database, name, "pg_recvlogical")
	_, address := admin.Role("")
	asker := connect(t, address)
	await.Until(t, "the slot is owned", func() bool { return read(t, asker, name).Owner().PID != 0 })
	if s := read(t, asker, name); s.Taken(table()) == nil || s.Process.Client != nil {
		t.Errorf("%+v", s)
	}
}

func TestASessionThatCreatesASlotIsNotItsOwner(t *testing.T) {
	database := services.Database(t)
	asker, writer, creator, name := connect(t, database), connect(t, database), connect(t, database), services.Name(t)
	exec(t, writer, "BEGIN; SELECT pg_current_xact_id()")
	created := make(chan error, 1)
	go func() {
		_, err := creator.Exec(t.Context(), "SELECT pg_create_logical_replication_slot('"+name+"', 'pgoutput')").ReadAll()
		created <- err
	}()
	await.Until(t, "the slot is being created", func() bool { return read(t, asker, name).Creating() })
	if s := read(t, asker, name); s.Owner().PID != 0 || s.Taken(table()) != nil || s.Unusable() != nil {
		t.Errorf("%+v", s)
	}
	exec(t, writer, "ROLLBACK")
	must(t, await.Receive(t, "the slot is created", created))
	if s := read(t, asker, name); s.Active() || s.Creating() || !s.Here {
		t.Errorf("%+v", s)
	}
}

func TestOtherSlotsAreListedByWhatTheyRetain(t *testing.T) {
	conn, own, other, physical := connect(t, services.Database(t)), services.Name(t), services.Name(t), services.Name(t)
	t.Cleanup(func() { _, _ = conn.Exec(context.Background(), slot.DropSQL(physical)).ReadAll() })
	exec(t, conn, "SELECT pg_create_physical_replication_slot('"+physical+"', true)")
	exec(t, conn, "SELECT pg_logical_emit_message(false, 'x', 'x')")
	for _, name := range []string{own, other} {
		exec(t, conn, slot.CreateSQL(name, slot.Options{}))
	}
	mine := []string{other, physical} // other tests have slots, too
	all, err := slot.List(t.Context(), conn)
	must(t, err)
	others := slot.Others(all, func(name string) bool { return !slices.Contains(mine, name) })
	if len(others) != 2 || others[0].Name != physical || others[0].Type != "physical" || others[0].RetainedBytes <= others[1].RetainedBytes ||
		others[1].Name != other || others[1].Database == "" || others[1].Active() || others[0].Abandoned() {
		t.Errorf("got %+v", others)
	}
}

// Another process that has the PID now is not terminated.
func TestOnlyTheObservedProcessIsTerminated(t *testing.T) {
	database := services.Database(t)
	asker, name := connect(t, database), services.Name(t)
	conn := connect(t, database)
	rows, err := slot.Query(t.Context(), conn, `SELECT to_jsonb(backend_start) #>> '{}' FROM pg_stat_activity WHERE pid = pg_backend_pid()`)
	must(t, err)
	since, err := time.Parse(time.RFC3339Nano, rows[0][0])
	must(t, err)
	another := slot.Process{PID: conn.PID(), Since: since.Add(-1000)}
	must(t, another.Terminate(t.Context(), asker))
	exec(t, conn, "SELECT 1")
	stream(t, database, name, slot.Application(table()))
	await.Until(t, "the slot is owned", func() bool { return read(t, asker, name).Owner().PID != 0 })
	must(t, read(t, asker, name).Owner().Terminate(t.Context(), asker))
	await.Until(t, "the slot is free", func() bool { return !read(t, asker, name).Active() })
}

func TestApplicationNameIdentifiesTheTable(t *testing.T) {
	database := services.Database(t)
	seen := make(map[string]bool)
	long := strings.Repeat("x", 49)
	for _, table := range []outbox.Table{
		{Schema: "public", Name: "outbox"},
		{Schema: "a.b", Name: "c"},
		{Schema: "a", Name: "b.c"},
		{Schema: "public", Name: "ü"},
		{Schema: "public", Name: "ö"},
		{Schema: long, Name: long + "1"},
		{Schema: long, Name: long + "2"},
	} {
		name := slot.Application(table)
		if seen[name] {
			t.Errorf("%s is the name of two tables", name)
		}
		seen[name] = true
		if results, err := connect(t, database, "application_name", name).Exec(t.Context(), "SHOW application_name").ReadAll(); err != nil || string(results[0].Rows[0][0]) != name {
			t.Errorf("the server changes %q to %q, %v", results[0].Rows[0][0], name, err)
		}
	}
}

// These are the answers of the manuals: no server of version 19 was at hand.
func TestFrom19OnReplicaIsEnough(t *testing.T) {
	for _, one := range []struct {
		major int
		level string
		want  bool
	}{
		{14, "logical", true},
		{18, "replica", false},
		{18, "minimal", false},
		{19, "logical", true},
		{19, "replica", true},
		{19, "minimal", false},
		{20, "replica", true},
		{0, "replica", false}, // a pooler may hide the version
	} {
		if got := slot.CanDecode(one.major, one.level); got != one.want {
			t.Errorf("Postgres %d with wal_level %s can decode: %t", one.major, one.level, got)
		}
	}
}

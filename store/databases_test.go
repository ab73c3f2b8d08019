package store_test

import (
	"context"
	"errors"
	"math"
	"net/url"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// everyStatement runs each statement on a table with rows of every kind. It leaves an empty table and one dead letter.
// Insert is SQL that inserts into the outbox.
func everyStatement(f *fixture, s *store.Store, name string) {
	f.Helper()
	f.store = s
	must(f, s.Check(f.Context()))
	f.Exec(`INSERT INTO ` + name + ` (routing_key, payload, ordering_key, available_at) VALUES
		('left', '1', NULL, NULL), ('due', '1', NULL, ` + duePast + `), ('keyed', '1', 'k', NULL), ('keyed due', '1', 'd', ` + duePast + `)`)
	if _, _, err := s.LastID(f.Context()); err != nil {
		f.Error(err)
	}
	due, keys, runs, backlog := f.findAll(s)
	if len(due) != 2 || len(keys) != 2 || len(runs) != 2 || len(backlog) != 2 {
		f.Fatalf("%d due, %d keys, %d in runs, %d without a key", len(due), len(keys), len(runs), len(backlog))
	}
	rows := f.sweep(refIDs(append(append(append(due, runs[0]...), runs[1]...), backlog...))...)
	if len(rows) != 4 {
		f.Fatalf("%d rows are read", len(rows))
	}
	if read, err := s.ReadRange(f.Context(), outbox.Range{UpTo: math.MaxInt64, Rows: 10, Bytes: 1000}); err != nil || len(read.Messages)+len(read.Traced) != 1 {
		f.Fatalf("of the range, %+v is read, %v", read, err)
	}
	f.settle(retried(rows[0], 0), dead(rows[1], true))
	rejection := retried(rows[2], 0)
	rejection.Decision.Detail = "nack: queue „ключ“ ist voll…"
	settled := f.settle(deleted(rows[0]), deleted(rows[3]), rejection)
	if len(settled.Done) != 3 {
		f.Fatalf("settled %+v", settled)
	}
	f.settle(deleted(rows[2]))
	if n := tabletest.One[int](f, `SELECT count(*)::int FROM `+name); n != 0 {
		f.Errorf("%d rows are left", n)
	}
}

func (f *fixture) findAll(s *store.Store) (due []outbox.Candidate, keys, runs []outbox.Run, backlog []outbox.Candidate) {
	f.Helper()
	var errs [5]error
	due, _, errs[0] = s.FindDue(f.Context(), nil, nil, 10)
	keys, _, errs[1] = s.FindKeys(f.Context(), nil, 10, 10, math.MaxInt64)
	_, _, errs[2] = s.FindKeys(f.Context(), keys[0][0].OrderingKey, 10, 10, math.MaxInt64)
	runs, _, errs[3] = s.FindRuns(f.Context(), []string{"k", "d", "none"}, 10, math.MaxInt64)
	backlog, errs[4] = s.FindNewest(f.Context(), 0, math.MaxInt64, 10)
	must(f, errors.Join(errs[:]...))
	return due, keys, runs, backlog
}

func refIDs(rows []outbox.Candidate) (ids []int64) {
	for _, row := range rows {
		ids = append(ids, row.ID)
	}
	return ids
}

func TestEveryStatementWorksInALatin1Database(t *testing.T) {
	f := newFixture(t, "TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")
	everyStatement(f, f.store, "outbox")
}

func TestEveryStatementWorksUnderAnyName(t *testing.T) {
	f := newFixture(t)
	odd := outbox.Table{Schema: `My "Schema"`, Name: `{dead} $1 'Box'`}
	if _, _, err := migrations.Up(t.Context(), f.Conn, odd); err != nil {
		t.Fatal(err)
	}
	everyStatement(f, open(t, f.URL, store.Options{Table: odd, Block: true}), odd.SQL())
}

func TestEveryStatementWorksWithTheLeastPrivileges(t *testing.T) {
	f := newFixture(t)
	address := f.role(`GRANT SELECT, UPDATE, DELETE ON outbox`, `GRANT SELECT, INSERT ON outbox_dead_letter`,
		`GRANT SELECT ON SEQUENCE outbox_id_seq`)
	everyStatement(f, open(t, address, store.Options{Table: tabletest.Name(), Block: true}), "outbox")
}

func TestEveryStatementWorksWithUnusualDatabaseSettings(t *testing.T) {
	f := newFixture(t)
	for _, setting := range []string{
		`default_transaction_isolation = 'serializable'`, `DateStyle = 'SQL, DMY'`, `IntervalStyle = 'sql_standard'`,
		`bytea_output = 'escape'`, `TimeZone = 'Asia/Kolkata'`, `search_path = ''`, `standard_conforming_strings = off`,
		`backslash_quote = off`, `client_encoding = 'LATIN1'`, `plan_cache_mode = 'force_generic_plan'`,
	} {
		f.Exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET ` + quoteForDo(setting) + `', current_database()); END $$`)
	}
	everyStatement(f, open(t, f.URL, store.Options{Table: tabletest.Name()}), "outbox")
}

func TestSettleDoesNotFailUnderSerializableByDefault(t *testing.T) {
	f := newFixture(t)
	f.Exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = ''serializable''', current_database()); END $$`)
	s := open(t, f.URL, store.Options{Table: tabletest.Name()})
	f.store = s
	f.Plain(1)
	m := f.read(0)[0]
	tx := tabletest.Begin(t, f.Conn, `UPDATE outbox SET last_error = 'touched'`)
	settled := make(chan error, 1)
	go func() {
		_, err := s.Settle(t.Context(), []outbox.Settlement{deleted(m)})
		settled <- err
	}()
	await.Until(t, "the delete waits", func() bool {
		return tabletest.One[bool](f, `SELECT EXISTS (SELECT FROM pg_locks
			WHERE NOT granted AND transactionid = pg_current_xact_id()::xid)`)
	})
	tabletest.End(t, tx.Commit)
	if err := <-settled; err != nil {
		t.Errorf("a delete that had to wait: %v", err)
	}
}

// An application may have its own columns, even with the names of computed columns.
func TestEveryStatementWorksBesideColumnsOfAnyName(t *testing.T) {
	f := newFixture(t)
	f.AddColumns()
	everyStatement(f, open(t, f.URL, store.Options{Table: tabletest.Name(), Block: true}), "outbox")
}

func TestEveryStatementWorksOnAPartitionedTable(t *testing.T) {
	f := newPartitioned(t)
	everyStatement(f, open(t, f.URL, store.Options{Table: tabletest.Name(), Block: true}), "outbox")
}

// newPartitioned has a partitioned outbox: ids 1 and 2 are in the first partition, all others in the second.
func newPartitioned(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	f.Exec(`ALTER TABLE outbox RENAME TO plain`)
	f.Exec(`CREATE TABLE outbox (LIKE plain INCLUDING DEFAULTS INCLUDING CONSTRAINTS, PRIMARY KEY (id)) PARTITION BY RANGE (id)`)
	f.Exec(`CREATE SEQUENCE boxes OWNED BY outbox.id`)
	f.Exec(`ALTER TABLE outbox ALTER id SET DEFAULT nextval('boxes')`)
	f.Exec(`CREATE TABLE first PARTITION OF outbox FOR VALUES FROM (MINVALUE) TO (3)`)
	f.Exec(`ALTER TABLE plain DROP last_error, ADD last_error text`) // columns in another order
	f.Exec(`ALTER TABLE plain ALTER id DROP IDENTITY`)
	f.Exec(`ALTER TABLE outbox ATTACH PARTITION plain FOR VALUES FROM (3) TO (MAXVALUE)`)
	return f
}

func (f *fixture) role(grants ...string) (address string) {
	f.Helper()
	name, address := f.Role("")
	for _, grant := range grants {
		f.Exec(grant + ` TO ` + name)
	}
	return address
}

func TestAnUnreachableDatabaseIsNotReportedAsAProblem(t *testing.T) {
	proxy := services.NewProxy(t, services.SharedPostgres(t).Addr())
	proxy.Refuse()
	url := "postgres://postgres:postgres@" + proxy.Addr() + "/postgres?sslmode=disable"
	s := open(t, url, store.Options{Table: tabletest.Name()})
	if err := s.Check(t.Context()); err == nil || problem.Is(err) {
		t.Errorf("err = %v", err)
	}
}

func TestErrorsDoNotContainThePassword(t *testing.T) {
	_, err := store.Open(pgdial.AddressOf("postgres://user:topsecret@127.0.0.1:notaport/db", ""), store.Options{Table: tabletest.Name()})
	if err == nil || strings.Contains(err.Error(), "topsecret") {
		t.Errorf("err = %v", err)
	}
	s := open(t, "postgres://user:topsecret@127.0.0.1:1/db?sslmode=disable", store.Options{Table: tabletest.Name()})
	if _, _, err := s.LastID(t.Context()); err == nil || strings.Contains(err.Error(), "topsecret") {
		t.Errorf("err = %v", err)
	}
}

// A terminated session and a statement timeout are no restart.
func TestARestartOfTheServerIsDetected(t *testing.T) {
	server := services.PrivatePostgres(t)
	if server.PID() == 0 {
		t.Skip("the server's processes are out of reach")
	}
	admin := func(sql string, args ...any) {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), server.URL("postgres"))
		must(t, err)
		defer conn.Close(context.Background())
		tabletest.Run(t, conn, sql, args...)
	}
	admin(`CREATE ROLE plain LOGIN PASSWORD 'secret'`) // it sees little of other sessions
	address, err := url.Parse(server.URL("postgres"))
	must(t, err)
	address.User = url.UserPassword("plain", "secret")
	s := open(t, address.String(), store.Options{Table: tabletest.Name()})
	answers := func() bool { _, err := s.Snapshot(t.Context(), false); return err == nil }
	await.Until(t, "the server answers", answers)
	for _, event := range []struct {
		name    string
		happens func()
		counts  bool
	}{
		{"a session is ended", func() {
			admin(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'plain'`)
		}, false},
		{"a statement is given up", func() {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := s.Snapshot(ctx, false); err == nil {
				t.Error("a cancelled statement has succeeded")
			}
		}, false},
		{"a server process crashes", func() {
			crash(t, server)
		}, true},
		{"the server is stopped and started", func() {
			must(t, server.Restart(t.Context(), services.Fast))
		}, true},
	} {
		before := s.Restarts()
		event.happens()
		if event.counts { // the store's session may answer for a moment after others have ended
			await.Until(t, "a restart is counted: "+event.name, func() bool { return answers() && s.Restarts() > before })
			continue
		}
		await.Until(t, "the server answers", answers)
		if s.Restarts() > before {
			t.Errorf("a restart is counted: %s", event.name)
		}
	}
}

// crash kills one process of the server; the server then ends all others and recovers.
func crash(t *testing.T, server *services.Postgres) {
	t.Helper()
	victim, observer := tabletest.Connect(t, server.URL("postgres")), tabletest.Connect(t, server.URL("postgres"))
	must(t, syscall.Kill(int(victim.PgConn().PID()), syscall.SIGKILL))
	await.Until(t, "the server ends all sessions", func() bool { return observer.Ping(context.Background()) != nil })
}

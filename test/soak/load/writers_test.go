package load

import (
	"context"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

func TestMain(m *testing.M) { services.Main(m) }

// ledger is a recorder that tests can read.
type ledger struct {
	began  time.Time
	ending func(history.Transaction) // called first; may be nil

	mu       sync.Mutex
	told     map[int64]history.Transaction
	outcomes map[int64]history.Outcome
}

func newLedger() *ledger {
	return &ledger{began: time.Now(), told: make(map[int64]history.Transaction), outcomes: make(map[int64]history.Outcome)}
}

func (l *ledger) Now() time.Duration { return time.Since(l.began) }

func (l *ledger) Ending(t history.Transaction) {
	if l.ending != nil {
		l.ending(t)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told[t.ID] = t
}

func (l *ledger) Ended(id int64, outcome history.Outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outcomes[id] = outcome
}

// database creates the tables of a run.
func database(t *testing.T) (State, *pgx.Conn) {
	t.Helper()
	state := State{DatabaseURL: services.Database(t), Table: outbox.Table{Schema: "public", Name: "outbox"}, Run: "test"}
	conn, err := pgx.Connect(t.Context(), state.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, _, err := migrations.Up(t.Context(), conn, state.Table); err != nil {
		t.Fatal(err)
	}
	if err := state.CreateTables(t.Context()); err != nil {
		t.Fatal(err)
	}
	return state, conn
}

func options(s State) WriterOptions {
	return WriterOptions{
		DatabaseURL: s.DatabaseURL, Table: s.Table, Run: s.Run, Seed: 1, Rate: 5000, Writers: 2, KeysPerWriter: 4,
		Topology: DefaultTopology("soak"),
	}
}

func ids[T comparable](t *testing.T, conn *pgx.Conn, sql string) map[T]bool {
	t.Helper()
	rows, err := conn.Query(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatal(err)
	}
	set := make(map[T]bool)
	for _, id := range list {
		set[id] = true
	}
	return set
}

// wantTablesAsReported compares the tables with the writers' reports.
func wantTablesAsReported(t *testing.T, l *ledger, conn *pgx.Conn) {
	t.Helper()
	rows := ids[[16]byte](t, conn, `SELECT message_id FROM outbox`)
	business := ids[int64](t, conn, `SELECT id FROM soak_transaction`)
	committed, messages := 0, 0
	for id, x := range l.told {
		outcome := l.outcomes[id]
		if outcome == history.Committed {
			committed++
		}
		if business[id] != (outcome == history.Committed) {
			t.Errorf("transaction %d: %s, and its business row is there: %t", id, outcome, business[id])
		}
		for _, m := range x.Messages {
			want := outcome == history.Committed && !m.Discarded
			if rows[m.ID] != want {
				t.Errorf("transaction %d: %s, message %s discarded: %t, in the outbox: %t", id, outcome, m.ID, m.Discarded, rows[m.ID])
			}
			if want {
				messages++
			}
		}
	}
	if len(business) != committed || len(rows) != messages || messages == 0 {
		t.Errorf("%d business rows for %d commits, %d rows for %d messages", len(business), committed, len(rows), messages)
	}
}

func TestEveryTransactionLeavesThePlannedRows(t *testing.T) {
	state, conn := database(t)
	l, opts := newLedger(), options(state)
	run := &executor{run: state.Run, table: state.Table, record: l}
	plan := newPlanner(opts.Seed, 0, 1, 8, opts.Topology)
	writer, err := pgx.Connect(t.Context(), state.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = writer.Close(context.Background()) }()
	for range 600 {
		x := plan.next()
		outcome, err := run.execute(t.Context(), writer, x)
		if err != nil {
			t.Fatalf("transaction %d: %v", x.id, err)
		}
		if want := x.end == endCommit; want != (outcome == history.Committed) {
			t.Fatalf("transaction %d was to end with %d: %s", x.id, x.end, outcome)
		}
	}
	wantTablesAsReported(t, l, conn)

	var wrong int
	err = conn.QueryRow(t.Context(), `SELECT count(*) FROM (
		SELECT seq < lag(seq) OVER (PARTITION BY ordering_key ORDER BY id) AS back FROM (
			SELECT id, ordering_key, substring(payload::text FROM '"seq":(\d+)')::int AS seq FROM outbox WHERE payload IS NOT NULL AND ordering_key IS NOT NULL
		) p) o WHERE back`).Scan(&wrong)
	if err != nil || wrong != 0 {
		t.Errorf("%d rows have a smaller place in their key than the row before, %v", wrong, err)
	}
}

// The load records a COMMIT whose answer was lost as neither a commit nor a rollback.
func TestACommitWithoutAnswerIsUnknown(t *testing.T) {
	for _, test := range []struct {
		name string
		held services.Direction
		kept bool
	}{
		{"the answer is lost", services.Downstream, true},
		{"the request is lost", services.Upstream, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			state, conn := database(t)
			address, err := url.Parse(state.DatabaseURL)
			if err != nil {
				t.Fatal(err)
			}
			proxy := services.NewProxy(t, address.Host)
			address.Host = proxy.Addr()

			l, opts := newLedger(), options(state)
			opts.DatabaseURL, opts.Writers, opts.Rate = address.String(), 1, 200
			first := make(chan history.Transaction, 1)
			var once sync.Once
			l.ending = func(x history.Transaction) {
				if plannedEnd(opts, x.ID) == endCommit {
					once.Do(func() { proxy.BlackHole(test.held); first <- x })
				}
			}
			writers, err := StartWriters(t.Context(), opts, l)
			if err != nil {
				t.Fatal(err)
			}
			defer writers.Stop()
			x := <-first
			if test.kept {
				await.Until(t, "the transaction is recorded", func() bool { return ids[int64](t, conn, `SELECT id FROM soak_transaction`)[x.ID] })
			}
			proxy.Cut()
			proxy.Resume()
			await.Until(t, "more than 20 outcomes are known", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return len(l.outcomes) > 20 })
			writers.Stop()
			if l.outcomes[x.ID] != history.Unknown {
				t.Errorf("the transaction is %s", l.outcomes[x.ID])
			}
			if kept := ids[int64](t, conn, `SELECT id FROM soak_transaction`)[x.ID]; kept != test.kept {
				t.Errorf("its business row is there: %t", kept)
			}
			wantKeysAbandoned(t, l, x)
		})
	}
}

// plannedEnd returns how a transaction of the only writer will end.
func plannedEnd(opts WriterOptions, id int64) ending {
	plan := newPlanner(opts.Seed, 0, opts.Writers+1, opts.KeysPerWriter, opts.Topology)
	for {
		if x := plan.next(); x.id == id {
			return x.end
		}
	}
}

func wantKeysAbandoned(t *testing.T, l *ledger, unknown history.Transaction) {
	t.Helper()
	keys := make(map[string]bool)
	for _, m := range unknown.Messages {
		keys[m.Key] = m.Key != ""
	}
	for id, x := range l.told {
		for _, m := range x.Messages {
			if id > unknown.ID && keys[m.Key] {
				t.Errorf("transaction %d uses key %s of transaction %d, whose outcome is unknown", id, m.Key, unknown.ID)
			}
		}
	}
}

package store_test

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/internal/await"
	"github.com/cdc-relay/cdc-relay/internal/services"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
)

func TestMain(m *testing.M) { services.Main(m) }

func table() outbox.Table { return outbox.Table{Schema: "public", Name: "outbox"} }

// fixture is a database with an outbox, and an application's connection.
type fixture struct {
	*testing.T
	url   string
	conn  *pgx.Conn
	store *store.Store
}

// newFixture creates a database with the tables, and opens a store on them.
func newFixture(t *testing.T, options ...string) *fixture {
	t.Helper()
	f := &fixture{T: t, url: services.Database(t, options...)}
	f.conn = connect(t, f.url)
	if _, _, err := migrations.Up(t.Context(), f.conn, table()); err != nil {
		t.Fatal(err)
	}
	f.store = open(t, f.url, table(), false)
	return f
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func open(t *testing.T, url string, table outbox.Table, block bool) *store.Store {
	t.Helper()
	s, err := store.Open(url, table, block, outbox.Shard{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func (f *fixture) exec(sql string, args ...any) {
	f.Helper()
	if _, err := f.conn.Exec(f.Context(), sql, args...); err != nil {
		f.Fatalf("%s: %v", sql, err)
	}
}

// insert adds a row ("(routing_key, payload) VALUES …") and returns its id.
func (f *fixture) insert(columns string, args ...any) int64 {
	f.Helper()
	return one[int64](f, "INSERT INTO outbox "+columns+" RETURNING id", args...)
}

// plain adds n rows without a key.
func (f *fixture) plain(n int) {
	f.Helper()
	f.exec(`INSERT INTO outbox (routing_key, payload) SELECT 'r', to_json(i) FROM generate_series(1, $1::int) i`, n)
}

// one reads a single value.
func one[T any](f *fixture, sql string, args ...any) T {
	f.Helper()
	var v T
	if err := f.conn.QueryRow(f.Context(), sql, args...).Scan(&v); err != nil {
		f.Fatalf("%s: %v", sql, err)
	}
	return v
}

func (f *fixture) ids(where string) []int64 {
	f.Helper()
	return one[[]int64](f, "SELECT coalesce(array_agg(id ORDER BY id), '{}') FROM outbox WHERE "+where)
}

// read returns the rows with a greater id as a claim reads them, but locks nothing.
func (f *fixture) read(after int64) (messages []*outbox.Message) {
	f.Helper()
	rows, err := f.conn.Query(f.Context(), `SELECT id, message_id, ordering_key, available_at, attempts, coalesce(possible_duplicate, false)
		FROM outbox WHERE id > $1 ORDER BY id`, after)
	if err != nil {
		f.Fatal(err)
	}
	var id int64
	var messageID [16]byte
	var key *string
	var available pgtype.Timestamptz
	var attempts int
	var duplicate bool
	_, err = pgx.ForEachRow(rows, []any{&id, &messageID, &key, &available, &attempts, &duplicate}, func() error {
		messages = append(messages, &outbox.Message{
			ID: id, MessageID: messageID, OrderingKey: key, AvailableAt: available.Time, Attempts: attempts, PossibleDuplicate: duplicate,
		})
		key = nil
		return nil
	})
	if err != nil {
		f.Fatal(err)
	}
	return messages
}

// claim locks rows; the test ends the claim.
func (f *fixture) claim(fresh outbox.Fresh, ids ...int64) *store.Claim {
	f.Helper()
	claim, err := f.store.Lock(f.Context(), ids, fresh, "")
	if err != nil {
		f.Fatal(err)
	}
	return claim
}

// commit ends a claim.
func (f *fixture) commit(claim *store.Claim, rows ...outbox.Settlement) {
	f.Helper()
	if err := claim.Commit(f.Context(), rows, time.Hour); err != nil {
		f.Fatal(err)
	}
}

// takeAll claims and deletes all ready rows, by id.
func (f *fixture) takeAll() (messages []*outbox.Message) {
	f.Helper()
	claim := f.claim(outbox.AllFresh(), f.ids("true")...)
	var rows []outbox.Settlement
	for _, m := range claim.Messages {
		rows = append(rows, deleted(m))
	}
	f.commit(claim, rows...)
	return claim.Messages
}

func (f *fixture) settle(batch ...outbox.Settlement) store.Settled {
	f.Helper()
	settled, err := f.store.Settle(f.Context(), batch)
	if err != nil {
		f.Fatal(err)
	}
	return settled
}

func deleted(m *outbox.Message) outbox.Settlement {
	return outbox.Settlement{Message: m, Decision: outbox.Decision{Action: outbox.Delete}}
}

func retried(m *outbox.Message, delay time.Duration) outbox.Settlement {
	return outbox.Settlement{Message: m, Refused: true, Decision: outbox.Decision{Action: outbox.Retry, Delay: delay, Detail: "nack: no"}}
}

func dead(m *outbox.Message, refused bool) outbox.Settlement {
	return outbox.Settlement{Message: m, Refused: refused, Decision: outbox.Decision{
		Action: outbox.DeadLetter, Reason: outbox.ReasonTooLarge, Detail: "too_large: 17 MiB",
	}}
}

func released(m *outbox.Message) outbox.Settlement {
	return outbox.Settlement{Message: m, Decision: outbox.Decision{Action: outbox.Release}}
}

func idsOf(messages []*outbox.Message) []int64 {
	ids := []int64{}
	for _, m := range messages {
		ids = append(ids, m.ID)
	}
	return ids
}

func settledIDs(part []outbox.Settlement) []int64 {
	ids := []int64{}
	for _, s := range part {
		ids = append(ids, s.Message.ID)
	}
	return ids
}

func equal(t testing.TB, what string, got, want []int64) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// contextUntil is done once the condition holds.
func contextUntil(t *testing.T, condition func() bool) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(t.Context(), await.Hang())
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		for ctx.Err() == nil && !condition() {
			runtime.Gosched()
		}
		cancel()
	}()
	return ctx, func() { cancel(); <-finished }
}

func contextOfCleanup(t *testing.T) context.Context { return context.WithoutCancel(t.Context()) }

func quoteForDo(s string) string { return strings.ReplaceAll(s, "'", "''") }

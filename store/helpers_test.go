package store_test

import (
	"context"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/await"
	"github.com/cdc-relay/cdc-relay/internal/services"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
)

func TestMain(m *testing.M) { services.Main(m) }

func table() outbox.Table { return outbox.Table{Schema: "public", Name: "outbox"} }

func roomy() store.Limit { return store.Limit{Rows: 1000, Bytes: 1 << 30} }

// fixture is an outbox of its own, with an application's connection.
type fixture struct {
	*testing.T
	url   string
	conn  *pgx.Conn
	store *store.Store
}

// newFixture makes a database with the tables and opens a store on them.
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

func (f *fixture) leftovers(after int64, limit store.Limit) store.Page {
	f.Helper()
	page, err := f.store.Leftovers(f.Context(), "", after, math.MaxInt64, limit)
	if err != nil {
		f.Fatal(err)
	}
	return page
}

func (f *fixture) claimDue(limit store.Limit, lease time.Duration, keyed bool) []*outbox.Message {
	f.Helper()
	page, err := f.store.ClaimDue(f.Context(), limit, lease, keyed)
	if err != nil {
		f.Fatal(err)
	}
	return page.Messages
}

func (f *fixture) claimUnclaimed(limit store.Limit, lease, age time.Duration) []*outbox.Message {
	f.Helper()
	page, err := f.store.ClaimUnclaimed(f.Context(), limit, lease, store.Unclaimed{Age: age, UpTo: math.MaxInt64})
	if err != nil {
		f.Fatal(err)
	}
	return page.Messages
}

func (f *fixture) rowsOf(limit store.Limit, keys ...string) []store.KeyRows {
	f.Helper()
	var places []store.Place
	for _, key := range keys {
		places = append(places, store.Place{Key: key, After: store.FromTheOldest})
	}
	return f.rowsFrom(limit, places...)
}

func (f *fixture) rowsFrom(limit store.Limit, places ...store.Place) []store.KeyRows {
	f.Helper()
	page, err := f.store.RowsOfKeys(f.Context(), "", places, limit)
	if err != nil {
		f.Fatal(err)
	}
	return page.Keys
}

func (f *fixture) settle(batch ...store.Settlement) store.Settled {
	f.Helper()
	settled, err := f.store.Settle(f.Context(), batch)
	if err != nil {
		f.Fatal(err)
	}
	return settled
}

func deleted(m *outbox.Message) store.Settlement {
	return store.Settlement{Message: m, Decision: store.Decision{Action: store.Delete}}
}

func retried(m *outbox.Message, delay time.Duration) store.Settlement {
	return store.Settlement{Message: m, Refused: true, Decision: store.Decision{Action: store.Retry, Delay: delay, Detail: "nack: no"}}
}

func dead(m *outbox.Message, refused bool) store.Settlement {
	return store.Settlement{Message: m, Refused: refused, Decision: store.Decision{
		Action: store.DeadLetter, Reason: outbox.ReasonTooLarge, Detail: "too_large: 17 MiB",
	}}
}

func released(m *outbox.Message) store.Settlement {
	return store.Settlement{Message: m, Decision: store.Decision{Action: store.Release}}
}

func idsOf(messages []*outbox.Message) []int64 {
	ids := []int64{}
	for _, m := range messages {
		ids = append(ids, m.ID)
	}
	return ids
}

func settledIDs(part []store.Settlement) []int64 {
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

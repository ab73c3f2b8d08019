package store_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func TestMain(m *testing.M) { services.Main(m) }

func must(t testing.TB, err error) { t.Helper(); services.Must(t, err) }

// fixture is a database with the tables, and a store on them.
type fixture struct {
	*tabletest.Tables
	store *store.Store
}

func newFixture(t testing.TB, options ...string) *fixture {
	t.Helper()
	tables := tabletest.New(t, options...)
	return &fixture{Tables: tables, store: open(t, tables.URL, store.Options{Table: tabletest.Name()})}
}

func open(t testing.TB, url string, options store.Options) *store.Store {
	t.Helper()
	s, err := store.Open(pgdial.AddressOf(url, ""), options)
	must(t, err)
	t.Cleanup(s.Close)
	return s
}

// read returns the rows with a greater id as a sweep reads them.
func (f *fixture) read(after int64) []*outbox.Message {
	f.Helper()
	columns := store.MessageColumnsAs(nil, func(column string) string { return column })
	rows, _ := f.Conn.Query(f.Context(), `SELECT `+columns+` FROM outbox r WHERE r.id > $1 ORDER BY r.id`, after)
	scanner := store.NewScanner(nil)
	messages, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*outbox.Message, error) { return scanner.Scan(row) })
	must(f, err)
	return messages
}

// sweep reads the rows with these ids that may leave.
func (f *fixture) sweep(ids ...int64) []*outbox.Message {
	f.Helper()
	rows, _, err := f.store.ReadRows(f.Context(), ids, math.MaxInt64)
	must(f, err)
	return rows
}

func (f *fixture) settle(batch ...outbox.Settlement) store.Settled {
	f.Helper()
	settled, err := f.store.Settle(f.Context(), batch)
	must(f, err)
	return settled
}

func deleted(m *outbox.Message) outbox.Settlement {
	return outbox.Settlement{Message: m, Decision: outbox.Decision{Action: outbox.Delete}}
}

func retried(m *outbox.Message, delay time.Duration) outbox.Settlement {
	return outbox.Settlement{Message: m, Rejected: true, Decision: outbox.Decision{Action: outbox.Retry, Delay: delay, Detail: "nack: no"}}
}

func noRoom(m *outbox.Message) outbox.Settlement {
	return outbox.Settlement{Message: m, Decision: outbox.Decision{Action: outbox.Retry, Delay: time.Hour}}
}

func dead(m *outbox.Message, rejected bool) outbox.Settlement {
	return outbox.Settlement{Message: m, Rejected: rejected, Decision: outbox.Decision{
		Action: outbox.DeadLetter, Reason: outbox.ReasonTooLarge, Detail: "too_large: 17 MiB",
	}}
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

func quoteForDo(s string) string { return strings.ReplaceAll(s, "'", "''") }

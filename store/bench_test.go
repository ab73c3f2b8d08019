package store_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Deletes confirmed rows in batches.
func BenchmarkSettle(b *testing.B) {
	for _, batch := range []int{1, 10, 100, 500, 1000} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) { benchmarkSettle(b, batch) })
	}
}

func benchmarkSettle(b *testing.B, batch int) {
	f := newFixture(b)
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		part := insertBench(b, f, batch)
		b.StartTimer()
		settled, err := f.store.Settle(b.Context(), part)
		if err != nil || len(settled.Done) != batch {
			b.Fatal(len(settled.Done), err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*batch), "µs/row")
}

// Finds rows without a key, then locks and deletes them.
func BenchmarkClaim(b *testing.B) {
	const page = 500
	f := newFixture(b)
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		part := insertBench(b, f, page)
		b.StartTimer()
		found, err := f.store.FindBacklog(b.Context(), 0, math.MaxInt64, page, outbox.AllFresh())
		if err != nil {
			b.Fatal(err)
		}
		claim, err := f.store.Lock(b.Context(), refIDs(found), outbox.AllFresh(), "")
		if err != nil {
			b.Fatal(err)
		}
		if err := claim.Commit(b.Context(), part, 0); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*page), "µs/row")
}

func insertBench(b *testing.B, f *fixture, count int) []outbox.Settlement {
	b.Helper()
	rows, err := f.Conn.Query(b.Context(), `INSERT INTO outbox (routing_key, payload)
		SELECT 'orders.created', to_json(repeat('x', 298)) FROM generate_series(1, $1::int) RETURNING id, message_id`, count)
	if err != nil {
		b.Fatal(err)
	}
	part, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (outbox.Settlement, error) {
		m := &outbox.Message{}
		err := row.Scan(&m.ID, (*[16]byte)(&m.MessageID))
		return deleted(m), err
	})
	if err != nil {
		b.Fatal(err)
	}
	return part
}

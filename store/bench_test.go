package store_test

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/services"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
)

// BenchmarkSettle deletes confirmed rows in batches.
func BenchmarkSettle(b *testing.B) {
	for _, batch := range []int{1, 10, 100, 500, 1000} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) { benchmarkSettle(b, batch) })
	}
}

func benchmarkSettle(b *testing.B, batch int) {
	s, conn := openBench(b)
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		part := insertBench(b, conn, batch)
		b.StartTimer()
		settled, err := s.Settle(b.Context(), part)
		if err != nil || len(settled.Done) != batch {
			b.Fatal(len(settled.Done), err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*batch), "µs/row")
}

// BenchmarkClaim finds rows without a key, then locks and deletes them.
func BenchmarkClaim(b *testing.B) {
	const page = 500
	s, conn := openBench(b)
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		part := insertBench(b, conn, page)
		b.StartTimer()
		found, err := s.FindBacklog(b.Context(), 0, math.MaxInt64, page, outbox.AllFresh())
		if err != nil {
			b.Fatal(err)
		}
		claim, err := s.Lock(b.Context(), refIDs(found), outbox.AllFresh(), "")
		if err != nil {
			b.Fatal(err)
		}
		if err := claim.Commit(b.Context(), part, 0); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*page), "µs/row")
}

func openBench(b *testing.B) (*store.Store, *pgx.Conn) {
	b.Helper()
	url := services.Database(b)
	conn, err := pgx.Connect(b.Context(), url)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close(context.WithoutCancel(b.Context())) })
	if _, _, err := migrations.Up(b.Context(), conn, table()); err != nil {
		b.Fatal(err)
	}
	s, err := store.Open(url, table(), false, outbox.Shard{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.Close)
	return s, conn
}

func insertBench(b *testing.B, conn *pgx.Conn, count int) []outbox.Settlement {
	b.Helper()
	rows, err := conn.Query(b.Context(), `INSERT INTO outbox (routing_key, payload)
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

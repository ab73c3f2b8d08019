package store_test

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/tabletest"
)

func TestOldDeadLettersAreDeletedInBatches(t *testing.T) {
	f := newFixture(t)
	for id := range int64(5) {
		f.DeadLetter(id, "nack", "dead_at", "now() - interval '2 days'", "ordering_key", []string{"NULL", "'k'"}[id%2])
	}
	f.DeadLetter(9, "nack")
	left := func() []int64 {
		return tabletest.One[[]int64](f, `SELECT array_agg(id ORDER BY id) FROM outbox_dead_letter`)
	}
	n, err := open(t, f.URL, tabletest.Name(), true).DeleteDeadLetters(t.Context(), 24*time.Hour, 100)
	if err != nil || n != 3 {
		t.Errorf("%d, %v", n, err)
	}
	equal(t, "with keys that are held up", left(), []int64{1, 3, 9})
	for _, want := range []int64{1, 1, 0} {
		if n, err := f.store.DeleteDeadLetters(t.Context(), 24*time.Hour, 1); err != nil || n != want {
			t.Errorf("%d, %v, want %d", n, err, want)
		}
	}
	equal(t, "otherwise", left(), []int64{9})
}

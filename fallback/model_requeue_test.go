package fallback

import (
	"slices"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// requeue requeues the dead letters of a key with their old ids, all due at once, as the operator package does.
func (m *model) requeue(ids ...int64) {
	m.pass(time.Millisecond) // it was not due when the term began
	tx := &modelTx{scheduled: map[int64]time.Time{}, marked: map[int64]bool{}}
	for _, id := range ids {
		row := m.rows[id-1]
		*row = modelRow{id: id, key: row.key, coalesce: row.coalesce, tx: tx, duplicate: row.duplicate, requeued: true}
		row.available = m.now
		tx.scheduled[id] = m.now
		tx.marked[id] = row.duplicate
		tx.rows = append(tx.rows, row)
		delete(m.dead, id)
		delete(m.expired, id)
	}
	m.commit(tx)
}

// deadOfItsKey returns the dead letters of a row's key in id order; for a row without a key only the row.
func (m *model) deadOfItsKey(id int64) (ids []int64) {
	for _, row := range m.rows {
		if m.dead[row.id] && (row.id == id || (row.key != "" && row.key == m.rows[id-1].key)) {
			ids = append(ids, row.id)
		}
	}
	return ids
}

// keepBatch checks that requeued dead letters leave in order, and that no later row of the key leaves between them.
func (m *model) keepBatch(message *outbox.Message) {
	row := m.rows[message.ID-1]
	first := !row.returned && (row.requeued || m.delivered[row.id] == 0)
	row.returned = row.requeued
	for _, earlier := range m.rows[:row.id-1] {
		began := slices.ContainsFunc(earlier.tx.rows, func(r *modelRow) bool { return r.returned && r.tx == earlier.tx })
		if first && row.key != "" && earlier.key == row.key && earlier.requeued && !earlier.returned && !earlier.gone && began {
			m.t.Fatalf("key %s: row %d was delivered before row %d, which had been requeued", row.key, row.id, earlier.id)
		}
	}
}

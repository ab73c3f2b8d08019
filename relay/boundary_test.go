package relay

import (
	"math"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/outboxtest"
)

// A relay that starts marks all rows that a previous one may have published, whether the sequence or the application has
// set their ids. It does not mark rows that come later.
func TestRowsAboveTheSequenceAreMarkedAtAStart(t *testing.T) {
	ids := []int64{-4, 0, 1, 700, 1 << 40, math.MaxInt64 - 1}
	for _, mode := range []Mode{ModeAuto, ModePoll} {
		i := newInstance(t)
		i.config.Mode = mode
		for _, id := range ids {
			i.insertWithID(id)
		}
		publisher := outboxtest.NewPublisher(nil)
		r, stop := i.startWith(publisher, prometheus.NewRegistry())
		i.await("older rows have left", func() bool { return i.rowsLeft() == 0 })
		i.await("the relay leads or polls", func() bool { return mode == ModePoll || r.core.View().Leader })
		i.insertWithID(math.MaxInt64)
		i.await("the newer row has left", func() bool { return i.rowsLeft() == 0 })
		stop()
		for _, m := range publisher.Messages() {
			if m.PossibleDuplicate != (m.ID < math.MaxInt64) {
				t.Errorf("%s: message %d is marked: %t", mode, m.ID, m.PossibleDuplicate)
			}
		}
		if n := len(publisher.Messages()); n != len(ids)+1 {
			t.Errorf("%s: %d messages", mode, n)
		}
	}
}

func (i *instance) insertWithID(id int64) {
	i.t.Helper()
	_, err := i.db.Exec(i.t.Context(), `INSERT INTO outbox (id, routing_key, payload) OVERRIDING SYSTEM VALUE VALUES ($1, 'r', '1')`, id)
	if err != nil {
		i.t.Fatal(err)
	}
}

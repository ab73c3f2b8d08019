package operator_test

import (
	"errors"
	"testing"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// A row counts as unpublished only if no relay can have taken it, as for outbox_cancel.
func TestDeleteSaysWhichRowsMayBePublished(t *testing.T) {
	f := newFixture(t)
	for id, values := range []string{
		`now() + interval '1 hour', 0, NULL`,    // 1: scheduled
		`now() + interval '1 hour', 3, NULL`,    // 2: in retry
		`now() + interval '1 hour', 0, true`,    // 3: unconfirmed
		`now() - interval '1 second', 3, false`, // 4: due
		`NULL, 0, NULL`,                         // 5: the leader may stream it
		`now() + interval '1 hour', 0, false`,   // 6: locked
		`'infinity', 0, NULL`,                   // 7: never due
		`NULL, 0, NULL`,                         // 8: not selected
	} {
		f.Exec(`INSERT INTO outbox (id, routing_key, payload, available_at, attempts, possible_duplicate) VALUES ($1, 'r', '1', `+values+`)`, id+1)
	}
	other := tabletest.Connect(t, f.URL)
	if _, err := other.Exec(t.Context(), `BEGIN; SELECT 1 FROM outbox WHERE id = 6 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	o := f.operator()
	filter := operator.Filter{IDs: []int64{1, 2, 3, 4, 5, 6, 7, 99}}
	if n, err := o.CountWaiting(t.Context(), filter); err != nil || n != 7 {
		t.Errorf("%d, %v", n, err)
	}
	no := errors.New("no")
	done, err := o.Delete(t.Context(), filter, 2, func(total int64) error {
		if total != 7 {
			t.Errorf("asked about %d", total)
		}
		return no
	}, quiet)
	if !errors.Is(err, no) || done != (operator.Deleted{}) || len(f.IDs("true")) != 8 {
		t.Fatalf("%+v, %v", done, err)
	}
	done, err = o.Delete(t.Context(), filter, 2, nil, quiet)
	if err != nil || done != (operator.Deleted{Unpublished: 3, Uncertain: 3, Left: 1}) {
		t.Errorf("%+v, %v", done, err)
	}
	equal(t, "rows left", f.IDs("true"), []int64{6, 8})
}

// A claim locks its rows. What a relay publishes is not deleted, and a row that is claimed and given back is uncertain.
func TestDeleteLeavesAClaimAlone(t *testing.T) {
	f := newFixture(t)
	f.Exec(`INSERT INTO outbox (routing_key, payload, ordering_key) VALUES ('r', '1', 'k'), ('r', '1', 'k')`)
	s := f.store()
	claim, err := s.Lock(t.Context(), []int64{1}, outbox.AllFresh(), "")
	if err != nil || len(claim.Messages) != 1 {
		t.Fatalf("%v", err)
	}
	done, err := f.operator().Delete(t.Context(), operator.Filter{}, 10, nil, quiet)
	if err != nil || done != (operator.Deleted{Uncertain: 1, Left: 1}) {
		t.Errorf("%+v, %v", done, err)
	}
	claim.Abandon()
	done, err = f.operator().Delete(t.Context(), operator.Filter{}, 10, nil, quiet)
	if err != nil || done != (operator.Deleted{Uncertain: 1}) {
		t.Errorf("%+v, %v", done, err)
	}
}

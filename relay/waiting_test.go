package relay

import (
	"slices"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

func settlementOf(id int64) outbox.Settlement {
	return outbox.Settlement{
		Message:  &outbox.Message{Row: outbox.Row{ID: id}},
		Decision: outbox.Decision{Action: outbox.Delete},
	}
}

func with(id int64, change func(*outbox.Settlement)) outbox.Settlement {
	s := settlementOf(id)
	change(&s)
	return s
}

func locked(s *outbox.Settlement) { s.Locked = true }

func aside(s *outbox.Settlement) { s.Fault = &outbox.Fault{} }

func dueIDs(rows []outbox.Settlement) (ids []int64) {
	for _, row := range rows {
		ids = append(ids, row.Message.ID)
	}
	return ids
}

func TestTheWaitOfARowDoublesUpToASecond(t *testing.T) {
	var w waitingRows
	first := time.Now()
	now, want := first, firstWait
	w.add(settlementOf(1), now)
	for range 12 {
		if got := w.next(now, time.Hour); got != want {
			t.Fatalf("the row is due in %s, want %s", got, want)
		}
		if early := w.due(now.Add(want-1), 10); early != nil {
			t.Fatalf("after %s less than the wait: %v", time.Nanosecond, dueIDs(early))
		}
		now = now.Add(want)
		rows := w.due(now, 10)
		if !slices.Equal(dueIDs(rows), []int64{1}) {
			t.Fatalf("due after %s: %v", want, dueIDs(rows))
		}
		w.add(rows[0], now)
		want = min(now.Sub(first), lastWait)
	}
	if want != lastWait {
		t.Errorf("the last wait is %s", want)
	}
}

// A row that is locked for hours must not delay one that is invisible for a moment.
func TestEachRowHasItsOwnWait(t *testing.T) {
	var w waitingRows
	now := time.Now()
	w.add(with(1, locked), now)
	for range 12 {
		now = now.Add(lastWait)
		w.add(w.due(now, 10)[0], now)
	}
	w.add(settlementOf(2), now)
	if got := w.next(now, time.Hour); got != firstWait {
		t.Errorf("the new row is due in %s", got)
	}
	if got := dueIDs(w.due(now.Add(firstWait), 10)); !slices.Equal(got, []int64{2}) {
		t.Errorf("due: %v", got)
	}
	// A row that was settled, and waits again as a new one, begins anew.
	now = now.Add(lastWait)
	w.due(now, 10)
	w.due(now, 10)
	w.add(with(1, locked), now)
	if got := w.next(now, time.Hour); got != firstWait {
		t.Errorf("the row that was settled is due in %s", got)
	}
}

func TestRowsSetAsideAreDueTogether(t *testing.T) {
	var w waitingRows
	now := time.Now()
	w.add(with(1, aside), now)
	w.add(with(2, aside), now.Add(time.Second))
	moved := with(3, aside)
	moved.Decision.Action = outbox.DeadLetter
	w.add(moved, now.Add(2*time.Second))
	w.add(settlementOf(4), now)
	if w.aside != 3 || w.undeleted != 2 {
		t.Errorf("%d rows are set aside, %d undeleted", w.aside, w.undeleted)
	}
	if got := w.setAside(); got.Rows != 3 || got.Published != 2 || len(got.First) != 3 || !slices.Equal(got.IDs, []int64{1, 2}) {
		t.Errorf("set aside: %+v", got)
	}
	if got := dueIDs(w.due(now.Add(asideWait-1), 10)); !slices.Equal(got, []int64{4}) {
		t.Errorf("due before: %v", got)
	}
	now = now.Add(asideWait)
	for _, want := range [][]int64{{1, 2}, {3}, nil} { // a batch of two each time
		rows := w.due(now, 2)
		if !slices.Equal(dueIDs(rows), want) {
			t.Fatalf("due: %v, want %v", dueIDs(rows), want)
		}
		for _, row := range rows {
			w.add(row, now)
		}
	}
	if w.aside != 3 || w.undeleted != 2 {
		t.Errorf("after another try, %d rows are set aside, %d undeleted", w.aside, w.undeleted)
	}
	if got := w.next(now, time.Hour); got != asideWait {
		t.Errorf("the next try is in %s", got)
	}
}

package relay

import (
	"slices"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// waitReason is why a row could not be deleted or updated yet.
type waitReason uint8

const (
	// notVisible: the transaction of the row is not visible yet. Usually it is within microseconds. If a synchronous
	// standby is down, rows stay invisible until it returns.
	notVisible waitReason = iota
	// locked: another session has locked the row.
	locked
	// unchangeable: a trigger, a foreign key or a constraint keeps the row as it is.
	unchangeable
)

const (
	// firstWait and lastWait bound the wait of a row that is not visible or locked. It doubles with each try.
	firstWait = 2 * time.Millisecond
	lastWait  = time.Second
	// unchangeableWait is how often unchangeable rows are tried again.
	unchangeableWait = 10 * time.Second
)

// waitingRows are the rows to settle again later. The zero value is empty. Only one goroutine may use it.
type waitingRows struct {
	rows []waitingRow
	// waited are the last waits of the rows that due has returned last.
	waited map[*outbox.Message]time.Duration
	// unchangeableDue is when the unchangeable rows are due, all at once: each of them may split its batch.
	unchangeableDue time.Time
	// unchangeable counts these rows, undeleted those of them that were published.
	unchangeable, undeleted int
}

type waitingRow struct {
	outbox.Settlement
	reason waitReason
	wait   time.Duration
	due    time.Time
}

// add keeps a row until it is due again.
func (w *waitingRows) add(one outbox.Settlement, reason waitReason, now time.Time) {
	row := waitingRow{Settlement: one, reason: reason, wait: min(max(2*w.waited[one.Message], firstWait), lastWait)}
	row.due = now.Add(row.wait)
	if reason == unchangeable {
		if !w.unchangeableDue.After(now) {
			w.unchangeableDue = now.Add(unchangeableWait)
		}
		row.due = w.unchangeableDue
	}
	w.rows = append(w.rows, row)
	w.count(row, 1)
}

// due removes the rows that are due, at most some of them, and returns them. The caller settles them or adds them
// again.
func (w *waitingRows) due(now time.Time, most int) (due []waitingRow) {
	if clear(w.waited); len(w.rows) == 0 {
		return nil
	}
	if w.waited == nil {
		w.waited = make(map[*outbox.Message]time.Duration)
	}
	w.rows = slices.DeleteFunc(w.rows, func(row waitingRow) bool {
		if len(due) == most || row.due.After(now) {
			return false
		}
		due = append(due, row)
		w.waited[row.Message] = row.wait
		w.count(row, -1)
		return true
	})
	return due
}

func (w *waitingRows) count(row waitingRow, n int) {
	if row.reason != unchangeable {
		return
	}
	w.unchangeable += n
	if row.Decision.Action == outbox.Delete {
		w.undeleted += n
	}
}

// next returns how long no row is due, at most a given time.
func (w *waitingRows) next(now time.Time, most time.Duration) time.Duration {
	for _, row := range w.rows {
		most = min(most, row.due.Sub(now))
	}
	return most
}

// invisible reports whether a row has been invisible for seconds.
func (w *waitingRows) invisible() bool {
	return slices.ContainsFunc(w.rows, func(row waitingRow) bool {
		return row.reason == notVisible && row.wait == lastWait
	})
}

// ids returns the ids of the first rows that wait for a reason, at most some of them.
func (w *waitingRows) ids(reason waitReason, most int) (ids []int64) {
	for _, row := range w.rows {
		if len(ids) == most {
			break
		}
		if row.reason == reason {
			ids = append(ids, row.Message.ID)
		}
	}
	return ids
}

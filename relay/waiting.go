package relay

import (
	"slices"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

const (
	// firstWait and lastWait bound the wait of a row that is not visible or locked. It doubles with each try.
	firstWait = 2 * time.Millisecond
	lastWait  = time.Second
	// asideWait is how often rows that were set aside are tried again.
	asideWait = 10 * time.Second
)

// waitingRows are the rows to settle again later: those that another session has locked, those that were set aside, and
// those whose transaction is not visible yet. Usually it is within microseconds. If a synchronous standby is down, rows
// stay invisible until it returns. The zero value is empty. Only one goroutine may use it.
type waitingRows struct {
	rows []waitingRow
	// waited are the last waits of the rows that due has returned last.
	waited map[*outbox.Message]time.Duration
	// asideDue is when the rows set aside are due, all at once: each of them may split its batch.
	asideDue time.Time
	// aside counts these rows, undeleted those of them that were published.
	aside, undeleted int
}

type waitingRow struct {
	outbox.Settlement
	wait time.Duration
	due  time.Time
}

// add keeps a row until it is due again.
func (w *waitingRows) add(one outbox.Settlement, now time.Time) {
	row := waitingRow{Settlement: one, wait: min(max(2*w.waited[one.Message], firstWait), lastWait)}
	row.due = now.Add(row.wait)
	if one.Fault != nil {
		if !w.asideDue.After(now) {
			w.asideDue = now.Add(asideWait)
		}
		row.due = w.asideDue
	}
	w.rows = append(w.rows, row)
	w.count(row, 1)
}

// due removes the rows that are due, at most some of them, and returns them. The caller settles them or adds them
// again.
func (w *waitingRows) due(now time.Time, most int) (due []outbox.Settlement) {
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
		due = append(due, row.Settlement)
		w.waited[row.Message] = row.wait
		w.count(row, -1)
		return true
	})
	return due
}

func (w *waitingRows) count(row waitingRow, n int) {
	if row.Fault == nil {
		return
	}
	w.aside += n
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
		return !row.Locked && row.Fault == nil && row.wait == lastWait
	})
}

// locked reports whether other sessions have locked rows.
func (w *waitingRows) locked() bool {
	return slices.ContainsFunc(w.rows, func(row waitingRow) bool { return row.Locked && row.Fault == nil })
}

// setAside describes the rows set aside.
func (w *waitingRows) setAside() *Aside {
	a := Aside{Rows: w.aside}
	for _, row := range w.rows {
		if row.Fault == nil {
			continue
		}
		published := row.Decision.Action == outbox.Delete && row.Decision.Reason == ""
		if len(a.First) < shownAside {
			a.First = append(a.First, AsideRow{row.Message.ID, published, row.Fault.Error, row.Fault.Fix})
		}
		if published {
			a.Published++
			if len(a.IDs) < listedAside {
				a.IDs = append(a.IDs, row.Message.ID)
			}
		}
	}
	return &a
}

package relay

import (
	"slices"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

const (
	// firstWait and lastWait bound the wait of a row that is not visible or locked. It waits as long as it has waited
	// before, so the wait doubles with each try.
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
	// asideDue is when the rows set aside are due, all at once: each of them may split its batch.
	asideDue time.Time
	// aside counts these rows, undeleted those of them that were published.
	aside, undeleted int
}

type waitingRow struct {
	outbox.Settlement
	due time.Time
}

// add keeps a row until it is due again.
func (w *waitingRows) add(one outbox.Settlement, now time.Time) {
	if one.Since.IsZero() {
		one.Since = now
	}
	row := waitingRow{one, now.Add(min(max(now.Sub(one.Since), firstWait), lastWait))}
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
	w.rows = slices.DeleteFunc(w.rows, func(row waitingRow) bool {
		if len(due) == most || row.due.After(now) {
			return false
		}
		due = append(due, row.Settlement)
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

// why returns a row that other sessions have locked, or nil, and whether a row has been invisible for seconds.
func (w *waitingRows) why(now time.Time) (locked *outbox.Message, hidden bool) {
	for _, row := range w.rows {
		switch {
		case row.Fault != nil:
		case row.Locked && locked == nil:
			locked = row.Message
		case !row.Locked && now.Sub(row.Since) > lastWait:
			hidden = true
		}
	}
	return locked, hidden
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

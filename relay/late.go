package relay

import (
	"cmp"
	"sync"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// lateRows are rows that a claim has left without an answer, or for which the publisher had no room, and that are not
// settled since. Only a drain keeps them.
type lateRows struct {
	mu struct {
		sync.Mutex
		rows map[outbox.Ref]bool // nil unless draining
	}
}

// keep begins to keep late rows.
func (l *lateRows) keep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.rows = make(map[outbox.Ref]bool)
}

// note records rows that were written.
func (l *lateRows) note(written []outbox.Settlement) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range written {
		switch {
		case l.mu.rows == nil:
			return
		case one.Decision.Action == outbox.Postpone, one.Decision.Action == outbox.Retry && one.Decision.Reason == "":
			l.mu.rows[one.Message.Ref()] = true
		default:
			delete(l.mu.rows, one.Message.Ref())
		}
	}
}

// count returns how many rows are late, and the id of the first.
func (l *lateRows) count() (rows int, first int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for ref := range l.mu.rows {
		first = min(ref.ID, cmp.Or(first, ref.ID))
	}
	return len(l.mu.rows), first
}

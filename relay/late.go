package relay

import (
	"cmp"
	"sync"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// lateRows are rows without an answer, or for which the publisher had no room, and that are not settled since. Only a
// drain keeps them; otherwise it is nil.
type lateRows struct {
	mu struct {
		sync.Mutex
		rows map[outbox.Ref]bool
	}
}

func newLateRows() *lateRows {
	l := &lateRows{}
	l.mu.rows = make(map[outbox.Ref]bool)
	return l
}

// note records rows that were written.
func (l *lateRows) note(written []outbox.Settlement) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range written {
		if one.Decision.Action == outbox.Retry && one.Decision.Reason == "" {
			l.mu.rows[one.Message.Ref()] = true
		} else {
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

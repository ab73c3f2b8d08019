package relay

import (
	"time"

	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// vacancy is what a relay knows of the time in which nobody owned the slot, before it took the slot. So it decides how
// long the relay still leaves older rows to the previous leader. The zero value is for a relay that has not looked.
//
// That this relay has created the slot proves nothing: somebody may have ended the stream of the leader and dropped its
// slot a moment ago.
type vacancy struct {
	// free is since when this relay has seen no owner; zero: it saw one at its last look.
	free time.Time
	// looked is when it looked last, and unused how long the slot had had no owner then, according to the server.
	// Before Postgres 17, the server does not know.
	looked time.Time
	unused time.Duration
}

// unwatched is the longest time between the last look and the start of the stream in which no other relay can have
// taken the slot, published and lost it. If this process was paused or the server is slow, it takes longer.
const unwatched = core.LateAfter

// saw records the slot as it was shortly before now.
func (v *vacancy) saw(seen slot.Slot, now time.Time) {
	switch {
	case seen.Active():
		*v = vacancy{}
		return
	case v.free.IsZero():
		v.free = now
	}
	v.looked, v.unused = now, 0
	if seen.Exists() {
		v.unused = unused(seen)
	}
}

// since returns since when certainly nobody has owned the slot. This relay has taken it, before now.
func (v vacancy) since(now time.Time) time.Time {
	if outbox.Elapsed(v.looked, now) > unwatched {
		return now
	}
	if told := v.looked.Add(-v.unused); told.Before(v.free) {
		return told
	}
	return v.free
}

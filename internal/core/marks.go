package core

import (
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// marks decides which messages carry x-possible-duplicate. A message without it has not been published before. There
// are four reasons to mark a message:
//
//  1. The row says so (possible_duplicate): it was rejected, or moved, after it had perhaps been published.
//  2. The row could leave before this term, or before the server was restarted: others may have published it, or this
//     process, and the server has forgotten it.
//  3. This process has published the row, or one with a greater id, and the confirm was lost or the row set aside.
//  4. The message is sent long after this relay certainly led. The publisher decides that, from Message.TakenAt; see
//     Message.MayBeKnown.
//
// Reasons 2 and 3 apply to swept rows: the stream brings a row before it is published. The core's lock guards marks.
type marks struct {
	// older is the greatest id of a row for which reason 2 or 3 applies.
	older int64
	// lost is when a confirm was lost last.
	lost time.Time
}

// swept marks a message that a sweep has read.
func (ms *marks) swept(m *outbox.Message) {
	m.PossibleDuplicate = m.PossibleDuplicate || m.ID <= ms.older
}

// resolved marks a message for its next publication, after a result.
func (ms *marks) resolved(r outbox.Result, now time.Time) {
	r.Message.PossibleDuplicate = r.Message.PossibleDuplicate || r.MayHaveArrived()
	if r.MayHaveArrived() {
		ms.older, ms.lost = max(ms.older, r.Message.ID), now
	}
}

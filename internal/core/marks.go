package core

import (
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// marks decides which messages carry x-possible-duplicate. A message without it has not been published before. There
// are four reasons to mark a message:
//
//  1. The row says so (possible_duplicate): it was rejected, or moved, after it had perhaps been published.
//  2. This process has published the row, and the confirm was lost (unknown).
//  3. The row could leave before this term, or before the server was restarted: others may have published it, or this
//     process, and the server has forgotten it.
//  4. The message is sent long after this relay certainly led. The publisher decides that, from Message.TakenAt; see
//     Message.MayBeKnown.
//
// Reasons 1, 2 and 4 apply to streamed rows, all to swept rows. The core's lock guards marks.
type marks struct {
	// unknown are rows whose confirm was lost. anyUnknown: there are too many to remember.
	unknown    map[outbox.Ref]struct{}
	anyUnknown bool
	// older: rows that could leave before.
	older Boundary
}

// Boundary tells older rows: those up to an id, and those that were due at a time of the database.
type Boundary struct {
	ID int64
	At time.Time
}

func newMarks() marks { return marks{unknown: make(map[outbox.Ref]struct{})} }

// streamed marks a message that the stream brings.
func (ms *marks) streamed(m *outbox.Message) {
	_, found := ms.unknown[m.Ref()]
	m.PossibleDuplicate = m.PossibleDuplicate || found || ms.anyUnknown
}

// swept marks a message that a sweep has read.
func (ms *marks) swept(m *outbox.Message) {
	ms.streamed(m)
	older := m.ID <= ms.older.ID
	if m.AvailableAt != nil {
		older = !m.AvailableAt.After(ms.older.At)
	}
	m.PossibleDuplicate = m.PossibleDuplicate || older
}

// resolved marks a message for its next publication, after a result.
func (ms *marks) resolved(r outbox.Result) {
	r.Message.PossibleDuplicate = r.Message.PossibleDuplicate || r.MayHaveArrived()
}

// lostConfirm remembers a row that stays unchanged in the table, up to this number of rows.
func (ms *marks) lostConfirm(m *outbox.Message, most int) {
	if len(ms.unknown) >= most {
		ms.anyUnknown = true
		return
	}
	ms.unknown[m.Ref()] = struct{}{}
}

// written forgets a row that was deleted, or updated together with its mark.
func (ms *marks) written(ref outbox.Ref) { delete(ms.unknown, ref) }

package core

import (
	"math"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// marks decides which messages carry x-possible-duplicate. A message without it has not been published before. There
// are six reasons to mark a message:
//
//  1. The row says so (possible_duplicate). It was rejected, postponed or moved after it had perhaps been published.
//  2. The row has a trace: another claim has locked it and did not delete it, so xmax is not 0. The store reads it.
//  3. This process has published the row, and the confirm was lost (unknown).
//  4. Another relay may have streamed the row: its id is not above olderTermUpTo. Rows with a time leave by claims
//     only, and claims leave traces.
//  5. The server may have crashed and lost the traces: the row's id is not above tracesLostUpTo.
//  6. The message is sent long after this relay certainly owned the slot, or after its claim has locked the row. The
//     publisher decides that, from Message.TakenAt; see Message.MayBeKnown.
//
// Reasons 1, 3 and 6 apply to streamed rows, all six to claimed rows. The core's lock guards marks.
type marks struct {
	// unknown are streamed rows whose confirm was lost. anyUnknown: there are too many to remember.
	unknown        map[outbox.Ref]struct{}
	anyUnknown     bool
	olderTermUpTo  int64
	tracesLostUpTo int64
}

// newMarks returns the marks of a relay that does not lead: another relay may have published any row.
func newMarks() marks {
	return marks{unknown: make(map[outbox.Ref]struct{}), olderTermUpTo: allRows, tracesLostUpTo: noRow}
}

// Bounds for "rows up to this id".
const (
	allRows = math.MaxInt64
	noRow   = math.MinInt64
)

// streamed marks a message that the stream brings.
func (ms *marks) streamed(m *outbox.Message) {
	_, found := ms.unknown[m.Ref()]
	m.PossibleDuplicate = m.PossibleDuplicate || found || ms.anyUnknown
}

// claimed marks a message of a locked row.
func (ms *marks) claimed(m *outbox.Message) {
	ms.streamed(m)
	olderTerm := m.AvailableAt == nil && m.ID <= ms.olderTermUpTo
	m.PossibleDuplicate = m.PossibleDuplicate || olderTerm || m.ID <= ms.tracesLostUpTo
}

// resolved marks a message for its next publication, after a result.
func (ms *marks) resolved(r outbox.Result) {
	r.Message.PossibleDuplicate = r.Message.PossibleDuplicate || r.MayHaveArrived()
}

// lostConfirm remembers a row that stays unchanged in the table, up to this number of rows. A row with a time leaves by
// claims only, and the claim that has published it left a trace.
func (ms *marks) lostConfirm(m *outbox.Message, most int) {
	switch {
	case m.AvailableAt != nil:
	case len(ms.unknown) >= most:
		ms.anyUnknown = true
	default:
		ms.unknown[m.Ref()] = struct{}{}
	}
}

// written forgets a row that was deleted, or updated together with its mark.
func (ms *marks) written(ref outbox.Ref) { delete(ms.unknown, ref) }

// SetBoundary is for relays that do not lead: no other relay has published rows above this id.
func (c *Core) SetBoundary(id int64) {
	c.lock()
	defer c.mu.Unlock()
	if !c.mu.term.leader {
		c.mu.marks.olderTermUpTo = id
	}
}

// ServerRestarted records that connections to the server were lost, or that this relay begins. The server may have
// crashed and lost the locks of claims, and their traces in rows up to this id. Other relays may still publish the rows
// of these claims, unmarked, for RestFor. So rows with a time, which any relay claims, are left alone until then.
func (c *Core) ServerRestarted(id int64) {
	c.lock()
	defer c.mu.Unlock()
	c.mu.marks.tracesLostUpTo = id // an id of the earlier server means nothing
	c.mu.dueFrom = c.mu.now.Add(RestFor)
}

func (c *Core) dueRest() time.Duration { return max(c.mu.dueFrom.Sub(c.mu.now), 0) }

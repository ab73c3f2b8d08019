package core

import "github.com/cdc-relay/cdc-relay/outbox"

// registry holds the rows in flight, so that one process never publishes a row twice. It keeps a claimed row until the
// stream has passed the WAL position at which the claim read it. The core's lock guards it.
type registry struct {
	rows map[outbox.Ref]registered
	// passed is the position of the stream.
	passed uint64
	// awaitStream are settled rows that the stream may still bring, oldest first.
	awaitStream []seenRow
	limit       int // 0: no stream
}

type registered struct {
	// settled: the row is deleted, or waits in the table for its time.
	settled bool
	// seenAt: a claim saw the row, and the row committed before this WAL position. 0: no claim saw it.
	seenAt uint64
	// claim is the claim that locks the row. answer came while the claim was written.
	claim  Claim
	answer *answer
	// unchangeable: the row can be neither deleted nor updated.
	unchangeable bool
}

type seenRow struct {
	seenAt uint64
	ref    outbox.Ref
}

func newRegistry(limit int) registry {
	return registry{rows: make(map[outbox.Ref]registered), limit: limit}
}

// knows reports whether a streamed row is in memory or settled. A row that committed after a settled one with the same
// id was seen is a different row: it was requeued from the dead letters.
func (r *registry) knows(ref outbox.Ref, commitLSN uint64) bool {
	row, found := r.rows[ref]
	return found && !(row.settled && row.seenAt <= commitLSN)
}

// holds reports whether a row is in memory. Such a row must not be claimed.
func (r *registry) holds(ref outbox.Ref) bool {
	row, found := r.rows[ref]
	return found && !row.settled
}

func (r *registry) hold(ref outbox.Ref, seenAt uint64, claim Claim) {
	r.rows[ref] = registered{seenAt: max(seenAt, r.rows[ref].seenAt), claim: claim}
}

// keepAnswer keeps an answer until the row's claim is done: only then the row's new time is known.
func (r *registry) keepAnswer(a answer) {
	row := r.rows[a.Message.Ref()]
	row.answer = &a
	r.rows[a.Message.Ref()] = row
}

// leaveClaim ends the claim of a row that is still in flight, and returns the answer that was kept.
func (r *registry) leaveClaim(ref outbox.Ref) (a *answer) {
	row := r.rows[ref]
	a, row.claim, row.answer = row.answer, nil, nil
	r.rows[ref] = row
	return a
}

// putAside keeps a row that can be neither deleted nor updated, so that it is not published again.
func (r *registry) putAside(ref outbox.Ref) { r.rows[ref] = registered{unchangeable: true} }

// setAside reports whether putAside was called for the row.
func (r *registry) setAside(ref outbox.Ref) bool { return r.rows[ref].unchangeable }

// release drops an unpublished row. Sweeps can find it again.
func (r *registry) release(ref outbox.Ref) {
	if row := r.rows[ref]; row.seenAt > r.passed && r.limit > 0 {
		// The stream may still bring this row while a claim publishes it. It must not leave twice.
		r.settle(ref)
		return
	}
	delete(r.rows, ref)
}

// settle records that the row was deleted or updated. It keeps the row while the stream may still bring it.
func (r *registry) settle(ref outbox.Ref) {
	row, ok := r.rows[ref]
	if !ok {
		return
	}
	if row.seenAt <= r.passed || r.limit == 0 {
		delete(r.rows, ref)
		return
	}
	row.settled, row.claim = true, nil
	r.rows[ref] = row
	r.awaitStream = append(r.awaitStream, seenRow{row.seenAt, ref})
}

// streamStarts sets the start of a stream, and the end of the WAL. A new server's WAL may end before positions of the
// server that it replaced, so all positions are cut to its end.
func (r *registry) streamStarts(start, walEnd uint64) {
	for ref, row := range r.rows {
		row.seenAt = min(row.seenAt, walEnd)
		r.rows[ref] = row
	}
	for i := range r.awaitStream {
		r.awaitStream[i].seenAt = min(r.awaitStream[i].seenAt, walEnd)
	}
	r.passed = start
	r.dropPassed()
}

// streamPassed drops rows that the stream can no longer bring.
func (r *registry) streamPassed(position uint64) {
	r.passed = max(r.passed, position)
	r.dropPassed()
}

func (r *registry) dropPassed() {
	n := 0
	for n < len(r.awaitStream) && r.awaitStream[n].seenAt <= r.passed {
		r.drop(r.awaitStream[n].ref, r.passed)
		n++
	}
	if r.awaitStream = r.awaitStream[n:]; len(r.awaitStream) == 0 {
		r.awaitStream = nil // frees the array
	}
}

// drop forgets a settled row that was seen up to a position. The row may have been settled again later; awaitStream
// then has a second entry for it.
func (r *registry) drop(ref outbox.Ref, upTo uint64) {
	if row := r.rows[ref]; row.settled && row.seenAt <= upTo {
		delete(r.rows, ref)
	}
}

// overflow forgets all settled rows that wait for the stream, if there are too many. It returns the position before
// which streamed rows may have been published; 0: nothing was forgotten.
func (r *registry) overflow() (floor uint64) {
	if r.limit == 0 || len(r.awaitStream) < r.limit {
		return 0
	}
	for _, seen := range r.awaitStream {
		floor = max(floor, seen.seenAt, r.rows[seen.ref].seenAt)
	}
	for _, seen := range r.awaitStream {
		r.drop(seen.ref, floor)
	}
	r.awaitStream = nil
	return floor
}

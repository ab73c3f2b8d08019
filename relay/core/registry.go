package core

import "github.com/cdc-relay/cdc-relay/outbox"

// registry holds the rows that are in flight, and settled ones until the stream has passed the WAL position at which a
// claim saw them: one process never publishes a row twice. It belongs to the core and its lock.
type registry struct {
	rows map[outbox.Ref]registered
	// passed is how far the stream has come.
	passed uint64
	// awaitStream are settled rows that the stream may still bring, in the order in which they were settled.
	awaitStream []seenRow
	limit       int // 0: there is no stream
}

type registered struct {
	// settled: its row is gone, or waits in the table for a time of its own.
	settled bool
	// seenAt is the WAL position before which the row had committed, if a claim saw it.
	seenAt uint64
	// claim is the open claim that holds the row.
	claim *Claim
	// aside: nothing can be written of it.
	aside bool
}

type seenRow struct {
	seenAt uint64
	ref    outbox.Ref
}

func newRegistry(limit int) registry {
	return registry{rows: make(map[outbox.Ref]registered), limit: limit}
}

// knows tells whether a row from the stream is in memory or settled. A row that committed after its settled namesake was
// seen is another one: it was sent back from the dead letters.
func (r *registry) knows(ref outbox.Ref, commitLSN uint64) bool {
	row, found := r.rows[ref]
	return found && !(row.settled && row.seenAt <= commitLSN)
}

// holds tells whether a row is in memory, and so not to be claimed.
func (r *registry) holds(ref outbox.Ref) bool {
	row, found := r.rows[ref]
	return found && !row.settled
}

func (r *registry) hold(ref outbox.Ref, seenAt uint64, claim *Claim) {
	r.rows[ref] = registered{seenAt: max(seenAt, r.rows[ref].seenAt), claim: claim}
}

// putAside keeps a row that nothing can be written of, so that it is not published again.
func (r *registry) putAside(ref outbox.Ref) { r.rows[ref] = registered{aside: true} }

// setAside tells whether that was done.
func (r *registry) setAside(ref outbox.Ref) bool { return r.rows[ref].aside }

// forget drops a row that was not published and is to be found in the table again.
func (r *registry) forget(ref outbox.Ref) {
	if row := r.rows[ref]; row.seenAt > r.passed && r.limit > 0 {
		// The stream has not brought it. It must not come directly, as it may be on its way by a claim then.
		r.settle(ref)
		return
	}
	delete(r.rows, ref)
}

// settle notes that what became of a row was written, and keeps the row as long as the stream may bring it.
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

// streamStarts is told where a stream starts, and where the WAL ends: both may be far behind what was seen on another
// server, which this one has replaced. It brings nothing that was seen there.
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

// streamPassed drops what the stream cannot bring any more.
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
		r.awaitStream = nil // lets go of the array
	}
}

// drop forgets a settled row that was seen up to a position. It may have come again meanwhile, and then stands in
// awaitStream once more.
func (r *registry) drop(ref outbox.Ref, upTo uint64) {
	if row := r.rows[ref]; row.settled && row.seenAt <= upTo {
		delete(r.rows, ref)
	}
}

// overflow forgets the settled rows that wait for the stream if they are too many, and returns the position up to which
// streamed rows may have been published; 0 if there is room.
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

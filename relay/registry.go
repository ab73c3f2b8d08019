package relay

import "github.com/cdc-relay/cdc-relay/outbox"

// standing is what the registry knows of a row.
type standing uint8

const (
	// unknown: never seen, or nothing can bring it again.
	unknown standing = iota
	// held: in memory, on its way to or from the broker.
	held
	// confirmed: published; its delete has not committed.
	confirmed
	// givenBack: refused or dead-lettered; that has not been written yet.
	givenBack
	// deleted: its row is gone, but an old snapshot or the stream may still bring it.
	deleted
	// dead is deleted for a row that is a dead letter now, and may be sent back as the same row.
	dead
	// kept: its row waits in the table for its time, but an old snapshot or the stream
	// may still bring it as it was before.
	kept
)

// settled: what became of the row was written.
func (s standing) settled() bool { return s == deleted || s == dead || s == kept }

// registry holds the rows that are in flight, and settled ones for as long as
// anything can bring them again: the stream, until it has passed the position at
// which the row was seen in the table, and a sweep query that began before the row
// was settled (docs/architecture.md, invariant 6). It belongs to the core and its lock.
type registry struct {
	rows map[outbox.Ref]registered
	// passed is how far the stream has come.
	passed uint64
	// awaitStream are settled rows that the stream may still bring, in the order
	// in which they were settled.
	awaitStream        []seenRow
	mostAwaitingStream int
	// sweepOpen tells that a query on the table is under way.
	sweepOpen bool
	// awaitSweep are rows settled meanwhile.
	awaitSweep []outbox.Ref
}

type registered struct {
	standing standing
	// seenAt is the WAL position before which the row had committed, where a sweep
	// saw it; 0 where the stream brought it.
	seenAt uint64
	// gone: it was deleted or became a dead letter while the sweep query under way was open.
	gone bool
	// back: the stream has brought it as one that was sent back from the dead letters, before
	// the relay heard that it is one.
	back bool
}

type seenRow struct {
	seenAt uint64
	ref    outbox.Ref
}

func newRegistry(mostAwaitingStream int) registry {
	return registry{rows: make(map[outbox.Ref]registered), mostAwaitingStream: mostAwaitingStream}
}

func (r *registry) standing(ref outbox.Ref) standing { return r.rows[ref].standing }

// goneMeanwhile tells that the row was deleted, or became a dead letter, while the query under way was
// open: that may have seen it as it was before.
func (r *registry) goneMeanwhile(ref outbox.Ref) bool { return r.rows[ref].gone }

// sentBack tells that a row from the stream is one that was dead, and was sent back since: the
// transaction that wrote it first had committed when the row was seen. Of one that is givenBack
// nobody has heard yet that it was dead.
func (r *registry) sentBack(ref outbox.Ref, commitLSN uint64) bool {
	row := r.rows[ref]
	return (row.standing == dead || row.standing == givenBack) && row.seenAt <= commitLSN
}

// noteBack notes that the stream has brought such a one.
func (r *registry) noteBack(ref outbox.Ref) {
	row := r.rows[ref]
	row.back = true
	r.rows[ref] = row
}

// isBack tells that this was noted of a row.
func (r *registry) isBack(ref outbox.Ref) bool { return r.rows[ref].back }

// hold takes a row in. A row that was settled as kept may come again by a claim.
func (r *registry) hold(ref outbox.Ref, seenAt uint64) {
	r.rows[ref] = registered{standing: held, seenAt: max(seenAt, r.rows[ref].seenAt)}
}

// mark notes what became of a held row.
func (r *registry) mark(ref outbox.Ref, s standing) {
	if row, ok := r.rows[ref]; ok {
		row.standing = s
		r.rows[ref] = row
	}
}

// forget drops a row that was not published and is to be found in the table again.
func (r *registry) forget(ref outbox.Ref) { delete(r.rows, ref) }

// settle notes that the decision on a row was written (it is deleted, dead or kept), and keeps
// it as long as it may be brought again.
func (r *registry) settle(ref outbox.Ref, as standing) {
	row, ok := r.rows[ref]
	if !ok {
		return
	}
	row.standing, row.gone, row.back = as, r.sweepOpen && as != kept, false
	r.rows[ref] = row
	if r.sweepOpen {
		r.awaitSweep = append(r.awaitSweep, ref)
		return
	}
	r.release(ref, row)
}

func (r *registry) release(ref outbox.Ref, row registered) {
	if row.seenAt > r.passed {
		r.awaitStream = append(r.awaitStream, seenRow{row.seenAt, ref})
		return
	}
	delete(r.rows, ref)
}

// streamStarts is told where a stream starts, and where the WAL ends: both may be far behind what
// was seen on another server, which this one has replaced. It brings nothing that was seen there.
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
		ref := r.awaitStream[n].ref
		n++
		// It may have come again meanwhile, and stands here once more where that was later.
		if row := r.rows[ref]; row.standing.settled() && row.seenAt <= r.passed {
			if r.sweepOpen {
				r.awaitSweep = append(r.awaitSweep, ref)
			} else {
				delete(r.rows, ref)
			}
		}
	}
	if r.awaitStream = r.awaitStream[n:]; len(r.awaitStream) == 0 {
		r.awaitStream = nil // lets go of the array
	}
}

func (r *registry) sweepBegan() { r.sweepOpen = true }

func (r *registry) sweepEnded() {
	r.sweepOpen = false
	for _, ref := range r.awaitSweep {
		if row := r.rows[ref]; row.standing.settled() {
			row.gone = false
			r.rows[ref] = row
			r.release(ref, row)
		}
	}
	r.awaitSweep = nil
}

// overflow lets go of the settled rows that wait for the stream, where they are too
// many, and returns the position up to which the stream must then not be believed:
// rows that it brings from before may have been published. 0 where there is room.
func (r *registry) overflow() (floor uint64) {
	if len(r.awaitStream) < r.mostAwaitingStream {
		return 0
	}
	for _, seen := range r.awaitStream {
		row := r.rows[seen.ref]
		floor = max(floor, seen.seenAt, row.seenAt)
		if row.standing.settled() && !row.gone { // else the query under way may bring it
			delete(r.rows, seen.ref)
		}
	}
	r.awaitStream = nil
	return floor
}

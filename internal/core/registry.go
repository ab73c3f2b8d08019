package core

import "github.com/cdc-relay/cdc-relay/outbox"

// registry holds the rows in memory, so that one process never publishes a row twice. The core's lock guards it.
type registry map[outbox.Ref]registered

type registered struct {
	// seenAt: a sweep has read the row, and the row committed before this WAL position. 0: the stream brought it.
	seenAt uint64
	// unchangeable: the row can be neither deleted nor updated.
	unchangeable bool
}

// holds reports whether a row is in memory. Such a row leaves neither by the stream nor by a sweep.
func (r registry) holds(ref outbox.Ref) bool {
	_, found := r[ref]
	return found
}

// putAside keeps a row that can be neither deleted nor updated, so that it is not published again.
func (r registry) putAside(ref outbox.Ref) { r[ref] = registered{unchangeable: true} }

// setAside reports whether putAside was called for the row.
func (r registry) setAside(ref outbox.Ref) bool { return r[ref].unchangeable }

// release forgets a row that was deleted or updated, or that sweeps may find again.
func (r registry) release(ref outbox.Ref) registered {
	row := r[ref]
	delete(r, ref)
	return row
}

// cut limits all positions to the end of the WAL. A new server's WAL may end before positions of the server that it
// replaced.
func (r registry) cut(walEnd uint64) {
	for ref, row := range r {
		row.seenAt = min(row.seenAt, walEnd)
		r[ref] = row
	}
}

package core

import (
	"math"

	"github.com/cdc-relay/cdc-relay/internal/pgsnapshot"
)

// unseen are transactions whose rows may be in the table and invisible to queries: WAL has a commit before the commit
// is visible. The core's lock guards it.
type unseen struct {
	limit int
	// left are transactions whose rows the stream left in the table, oldest first.
	left []leftBy
	// seq is the number of the newest transaction.
	seq uint64
	// inProgress are transactions that a snapshot suspects as in progress. Any of their rows may have been missed.
	inProgress map[uint32]struct{}
	// forgottenAt is the seq at which transactions were forgotten; 0 once a snapshot has named them.
	forgottenAt uint64
}

type leftBy struct {
	xid uint32
	seq uint64
	id  int64 // the lowest id among its rows without a key
}

// note records a transaction under the number seq. It returns false if there are too many.
func (u *unseen) note(xid uint32, id int64) bool {
	if xid == 0 {
		return true // the row was read from the table
	}
	if n := len(u.left); n > 0 && u.left[n-1].xid == xid {
		u.left[n-1].id = min(u.left[n-1].id, id)
		return true
	}
	if len(u.left) >= u.limit {
		return false
	}
	u.seq++
	u.left = append(u.left, leftBy{xid, u.seq, id})
	return true
}

// forgetAll drops all transactions; a snapshot must name them again.
func (u *unseen) forgetAll() {
	u.seq++
	u.left, u.forgottenAt = nil, u.seq
}

// end drops all transactions, for a relay that does not lead.
func (u *unseen) end() {
	u.left, u.forgottenAt = nil, 0
	clear(u.inProgress)
}

// saw drops the transactions that a snapshot can see. It returns the id from which the backlog must be read for them.
func (u *unseen) saw(s pgsnapshot.Snapshot) (from int64) {
	from = noID
	waits := u.left[:0]
	for _, one := range u.left {
		if s.Finished(one.xid) {
			from = min(from, one.id)
		} else {
			waits = append(waits, one)
		}
	}
	if u.left = waits; len(waits) == 0 {
		u.left = nil
	}
	for xid := range u.inProgress {
		if s.Finished(xid) {
			delete(u.inProgress, xid)
			from = anyID
		}
	}
	return from
}

// name records all transactions in progress. The snapshot must be newer than the last forget.
func (u *unseen) name(s pgsnapshot.Snapshot) {
	u.forgottenAt = 0
	for _, xid := range s.InProgress() {
		u.inProgress[xid] = struct{}{}
	}
}

// visible returns the number below which all transactions are visible.
func (u *unseen) visible() uint64 {
	switch {
	case u.forgottenAt != 0:
		return 0
	case len(u.left) > 0:
		return u.left[0].seq
	}
	return math.MaxUint64
}

// all reports whether queries see all transactions up to a number.
func (u *unseen) all(seq uint64) bool { return len(u.inProgress) == 0 && u.visible() > seq }

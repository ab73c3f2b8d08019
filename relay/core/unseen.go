package core

import (
	"math"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// unseen are the transactions whose rows may be in the table though no query could see them: a commit is in the WAL
// before it is visible. It belongs to the core and its lock.
type unseen struct {
	limit int
	// left are transactions of which the stream has left rows in the table, in the order in which it did.
	left []leftBy
	// seq numbers them.
	seq uint64
	// named are those that a snapshot names: any row of theirs may have been missed.
	named map[uint32]struct{}
	// unnamed is seq when transactions were forgotten, until a snapshot has named them; then 0.
	unnamed uint64
}

type leftBy struct {
	xid uint32
	seq uint64
	id  int64 // the least id among its rows without a key
}

// note notes a transaction, or says that they are too many. The newest number is that of the transaction.
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

// forget drops them all, until a snapshot names them.
func (u *unseen) forget() {
	u.seq++
	u.left, u.unnamed = nil, u.seq
}

// end forgets them, for a relay that does not lead.
func (u *unseen) end() {
	u.left, u.unnamed = nil, 0
	clear(u.named)
}

// saw drops the transactions that a snapshot can see, and returns from which id on the backlog is to be read for them.
func (u *unseen) saw(s outbox.Snapshot) (from int64) {
	from = nothing
	rest := u.left[:0]
	for _, one := range u.left {
		if s.Finished(one.xid) {
			from = min(from, one.id)
		} else {
			rest = append(rest, one)
		}
	}
	if u.left = rest; len(rest) == 0 {
		u.left = nil
	}
	for xid := range u.named {
		if s.Finished(xid) {
			delete(u.named, xid)
			from = everything
		}
	}
	return from
}

// name takes all transactions that were in progress for a snapshot from after the newest loss.
func (u *unseen) name(s outbox.Snapshot) {
	u.unnamed = 0
	for _, xid := range s.InProgress() {
		u.named[xid] = struct{}{}
	}
}

// visible is the number below which all transactions that left rows were seen.
func (u *unseen) visible() uint64 {
	switch {
	case u.unnamed != 0:
		return 0
	case len(u.left) > 0:
		return u.left[0].seq
	}
	return math.MaxUint64
}

// all tells whether nothing could have been missed up to a number.
func (u *unseen) all(seq uint64) bool { return len(u.named) == 0 && u.visible() > seq }

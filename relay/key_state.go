package relay

import "github.com/cdc-relay/cdc-relay/outbox"

// keyState is what the gate knows of one ordering key.
type keyState struct {
	inFlight *outbox.Message
	// queue are the messages that follow, held in memory, oldest first.
	queue []*outbox.Message
	// table: rows of the key may be in the table that are not in the queue. Streamed
	// ones are left there, so that they do not overtake.
	table bool
	// waiting: the oldest of those must not leave yet. A claim brings it when due.
	waiting bool
	// dirty: there is something to fetch; a row was left since the last fetch began, or
	// the fetch did not read to the end.
	dirty bool
	// asked: the key stands in wanted, or a fetch is under way.
	asked bool
	// begun tells that fetches have read the key up to the row with the id readTo, and that
	// nothing has come in between since: the next one reads on from there. Rows that have left
	// are deleted a little later, and would be read again and again.
	begun  bool
	readTo int64
	// newest is the greatest id known before the first of these fetches, and couldRead tells what that could see: of
	// older rows that were written since, some may have been sent back to a place before readTo.
	newest    int64
	couldRead func(xid uint32) bool
	// readAnew is the last such transaction for which the key was read from the oldest on: one that is too long
	// ago for a snapshot to know is met again.
	readAnew uint32
	// leftXID is the newest transaction with a row that was left in the table, and leftID that row.
	// Once a fetch could see it, it could see all rows of the key before it, as the transactions of
	// a key do not overlap.
	leftXID uint32
	leftID  int64
	// backXID is one that may overlap with it: a row was sent back from the dead letters, with its old
	// id. Transactions that do not overlap are seen with leftXID.
	backXID uint32
}

// leave notes that a row is left in the table.
func (k *keyState) leave(m *outbox.Message) {
	switch {
	case m.XID == 0:
	case m.ID < k.leftID:
		k.backXID = m.XID
	default:
		if k.backXID == 0 {
			k.backXID = k.leftXID
		}
		k.leftXID, k.leftID = m.XID, m.ID
	}
}

// giveBack notes that rows that were held are left in the table, oldest first.
func (k *keyState) giveBack(rows ...*outbox.Message) {
	if k.table && k.leftXID != 0 {
		return // a newer row was left already
	}
	for _, m := range rows {
		k.leave(m)
	}
}

// sawLeft tells whether a fetch could see all rows that were left.
func (k *keyState) sawLeft(seen func(xid uint32) bool) bool {
	return (k.leftXID == 0 || seen(k.leftXID)) && (k.backXID == 0 || seen(k.backXID))
}

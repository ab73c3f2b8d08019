package core

import (
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Claim is a set of rows that one transaction locks. The sweeps own and run it; see fallback.Claim. The core gives it
// its rows with one of the Choose methods, and takes them back with Done.
type Claim interface {
	// Answered takes the decision for a message of the claim, and returns the next message of its key. Publishing:
	// messages may leave now. Taken is false if the claim waits for no more answers. The core calls it with its lock
	// held, so it must not call the core.
	Answered(s outbox.Settlement, publishing bool) (next *outbox.Message, taken bool)
}

// Capacity returns how many rows, up to page, and bytes a claim may take now. No rows: there is too little room.
// While the stream is live, it keeps a quarter of the window, and half of it once the window was full. Otherwise
// streamed rows would have to wait behind the whole backlog.
func (c *Core) Capacity(page int) (rows, bytes int) {
	c.lock()
	defer c.mu.Unlock()
	w := &c.mu.window
	share := c.limits.Messages
	switch {
	case !c.mu.term.leader || !c.mu.term.live:
	case w.full:
		share = max(share/2, 1)
	default:
		share = max(share*3/4, 1)
	}
	if !c.publishing() {
		return 0, 0
	}
	if w.messages+min(page, max(share/4, 1)) > share || w.bytes >= c.limits.Bytes/2 {
		w.lacks(c.mu.now)
		return 0, 0
	}
	return min(page, share-w.messages), min(c.limits.Bytes/4, c.limits.Bytes-w.bytes)
}

// Chosen are the rows of a claim, and all keys that it has. The claim returns them with Done. Large: it is a single row
// that exceeds the bytes of a claim, so its body takes long to read and may fill the memory. One such row is in memory
// at a time, beside the others.
type Chosen struct {
	Rows  []outbox.Candidate
	Keys  []string
	Large bool
}

// largeRow is a row of a large claim, and the places of the rows that wait for its end: the earliest due row, and the
// first one without a time.
type largeRow struct {
	ref     outbox.Ref
	waiting map[bool]outbox.Candidate
}

// wait records that a row without a key waits.
func (l *largeRow) wait(row outbox.Candidate) {
	first, waits := l.waiting[row.Due != nil]
	if !waits || row.Due != nil && row.Due.Before(*first.Due) || row.Due == nil && row.ID < first.ID {
		l.waiting[row.Due != nil] = row
	}
}

// endLarge lets the next large row have its turn.
func (c *Core) endLarge() {
	large := c.mu.large
	c.mu.large = nil
	for _, row := range large.waiting {
		c.missed(row)
	}
}

// LargeFailed records that the body of the large row was not read. The row is in memory until its claim is done.
func (c *Core) LargeFailed() {
	c.lock()
	defer c.mu.Unlock()
	c.endLarge()
	signal(c.Wake)
}

// Most limits a claim.
type Most struct{ Rows, Bytes int }

// ChooseRows chooses rows without a key for a claim, and asks for look-ups of the keys of the others if keys is set.
// Read is how many of the rows it has handled until there was no more room.
func (c *Core) ChooseRows(claim Claim, found []outbox.Candidate, keys bool, most Most) (chosen Chosen, read int) {
	c.lock()
	defer c.mu.Unlock()
	var keyless []outbox.Candidate
	wanted := make(map[string]bool)
	bytes := most.Bytes
	for i, row := range found {
		switch {
		case c.mu.registry.holds(row.Ref):
			continue
		case row.OrderingKey != nil:
			if keys && !wanted[*row.OrderingKey] {
				wanted[*row.OrderingKey] = true
				c.wantKey(*row.OrderingKey)
			}
		case row.Size > most.Bytes && c.mu.large != nil:
			c.mu.large.wait(row)
		case len(keyless) >= most.Rows || (len(keyless) > 0 && row.Size > bytes):
			return c.choose(claim, keyless, most), read
		default:
			keyless = append(keyless, row)
			bytes -= row.Size
		}
		read = i + 1
	}
	return c.choose(claim, keyless, most), len(found)
}

// choose puts rows into a claim: rows without a key, and for each key its head and the rows behind it, in order. It
// skips rows that are in memory or exceed the limits; their keys are looked up again.
func (c *Core) choose(claim Claim, rows []outbox.Candidate, most Most) (chosen Chosen) {
	bytes, known, ended, superseded := 0, make(map[string]bool), make(map[string]bool), make(map[string]bool)
	for _, row := range rows {
		if key := row.OrderingKey; key != nil && !known[*key] {
			known[*key] = true
			chosen.Keys = append(chosen.Keys, *key)
		}
		over := len(chosen.Rows) > 0 && (len(chosen.Rows) >= most.Rows || bytes+row.Size > most.Bytes)
		over = over || row.Size > most.Bytes && c.mu.large != nil
		over = over || c.mu.window.messages >= c.limits.Messages // the stream has filled it since Capacity
		if over || !row.Ready || c.mu.registry.holds(row.Ref) || (row.OrderingKey != nil && ended[*row.OrderingKey]) {
			if row.OrderingKey != nil {
				ended[*row.OrderingKey] = true
			} else if over {
				c.missed(row)
			}
			continue
		}
		if key := row.OrderingKey; key != nil {
			if superseded[*key] = superseded[*key] || row.Superseded; superseded[*key] && !row.Superseded {
				continue // it leaves once the superseded rows are gone
			}
		}
		bytes += row.Size
		if row.Size > most.Bytes {
			c.mu.large = &largeRow{ref: row.Ref, waiting: make(map[bool]outbox.Candidate)}
			chosen.Large, row.Size = true, 0
		}
		c.mu.window.messages++
		c.mu.window.bytes += row.Size
		c.mu.registry.hold(row.Ref, 0, claim)
		chosen.Rows = append(chosen.Rows, row)
	}
	return chosen
}

// missed makes sweeps find a keyless row again that a claim did not get.
func (c *Core) missed(row outbox.Candidate) {
	switch {
	case row.Due != nil:
		c.wantAgain(row)
	case c.mu.term.leader:
		c.mu.backlog = min(c.mu.backlog, passFrom(row.ID))
	}
}

// Lock is what a claim has locked.
type Lock struct {
	// Messages are the locked rows. All of them committed before the position.
	Messages []*outbox.Message
	Position uint64
	// Epoch is that in which the rows were chosen. Owned: the slot had the owner that this relay believed it to have.
	Epoch int
	Owned bool
}

// Locked records which of the chosen rows were locked, and marks their messages. Valid: the claim may publish them now.
// Otherwise it is uncertain whether this relay may claim these rows, or the publisher takes no messages.
func (c *Core) Locked(claim Claim, rows []outbox.Candidate, l Lock) (valid bool) {
	c.lock()
	defer c.mu.Unlock()
	valid = l.Owned && l.Epoch == c.mu.term.epoch
	if !valid {
		l.Position = 0 // it may belong to another server
		if c.mu.term.leader {
			c.doubt()
		}
	}
	got := make(map[outbox.Ref]*outbox.Message, len(l.Messages))
	for _, m := range l.Messages {
		got[m.Ref()] = m
	}
	for _, row := range rows {
		m := got[row.Ref]
		if m == nil {
			c.notLocked(row)
			continue
		}
		if c.mu.large == nil || c.mu.large.ref != row.Ref {
			c.mu.window.bytes += m.Size() - row.Size
		}
		c.mu.registry.hold(row.Ref, l.Position, claim)
		c.mu.marks.claimed(m)
	}
	return valid && c.publishing()
}

// notLocked gives up a chosen row that another session has locked, changed or deleted.
func (c *Core) notLocked(row outbox.Candidate) {
	c.forget(row.Ref, row.Size)
	if row.OrderingKey == nil {
		c.missed(row)
	}
}

// Ended is how a claim has ended.
type Ended struct {
	// Committed: all decisions were written. Otherwise the server may have written them or not.
	Committed bool
	Keys      []string
	// NotLocked are chosen rows, if the lock has failed.
	NotLocked []outbox.Candidate
	// Answered rows have an answer. Unsent rows were locked but not published. Late messages have no answer yet.
	Answered []outbox.Settlement
	Unsent   []*outbox.Message
	Late     []Late
}

// Late is a message without an answer, and the time to which the claim has postponed its row.
type Late struct {
	Message *outbox.Message
	Until   *time.Time
}

// Done takes back the rows of a claim. Late answers are settled one by one, also those that came while the claim was
// written. If the claim has not committed, its answered rows are settled too.
func (c *Core) Done(e Ended) (out Out) {
	c.lock()
	defer c.mu.Unlock()
	locked := make(map[string]bool)
	for _, row := range e.NotLocked {
		c.notLocked(row)
	}
	for _, m := range e.Unsent {
		c.releaseClaimed(m)
		if m.OrderingKey != nil {
			locked[*m.OrderingKey] = true
		}
	}
	flying := make(map[string]*outbox.Message)
	for _, late := range e.Late {
		if e.Committed {
			late.Message.AvailableAt = late.Until // a later answer settles the row only while it has this time
		}
		if key := late.Message.OrderingKey; key != nil {
			flying[*key] = late.Message
		}
	}
	deleted := make(map[string]int)
	for _, s := range e.Answered {
		key := s.Message.OrderingKey
		if key != nil {
			locked[*key] = true
		}
		switch {
		case s.Decision.Action == outbox.Release:
			c.releaseClaimed(s.Message)
		case e.Committed:
			c.settle(s)
			if key != nil && s.Decision.Action == outbox.Delete {
				deleted[*key]++
			}
		default:
			out.Settle = append(out.Settle, s)
		}
	}
	for _, key := range e.Keys {
		c.endKey(key, flying[key], deleted[key], locked[key])
	}
	for _, late := range e.Late {
		if answer := c.mu.registry.leaveClaim(late.Message.Ref()); answer != nil {
			out.Settle = append(out.Settle, c.resolved(*answer).Settle...) // no message is queued behind one of a claim
		}
	}
	for i := range out.Settle {
		out.Settle[i].Tried = true // the server may have committed it
	}
	return out
}

// endKey forgets a key of which all rows were deleted, and asks for a look-up of any other. The look-up waits until a
// late message is answered. Locked: the claim has locked rows of the key.
func (c *Core) endKey(key string, late *outbox.Message, deleted int, locked bool) {
	k := c.mu.keys.byKey[key]
	if k == nil || k.place != inClaim {
		return
	}
	if k.rows > 0 && deleted == k.rows {
		c.mu.keys.forget(key)
		return
	}
	if late != nil {
		k.line = []*outbox.Message{late} // even if another relay has deleted its row
	}
	if locked || len(k.line) > 0 {
		c.mu.keys.want(key)
	} else {
		c.mu.keys.lookAgain(key, k)
	}
	signal(c.Wake)
}

// releaseClaimed forgets a claimed row that stays unchanged in the table.
func (c *Core) releaseClaimed(m *outbox.Message) {
	c.forget(m.Ref(), m.Size())
	if m.OrderingKey == nil {
		c.missed(candidate(m))
	}
}

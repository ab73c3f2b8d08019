package core

import "github.com/cdc-relay/cdc-relay/outbox"

// Read is what a statement of a sweep has read: rows that leave if there is room. They leave like streamed rows.
type Read struct {
	// Messages are the rows, in the order in which they leave. All of them committed before the position.
	Messages []*outbox.Message
	Position uint64
	// Epoch is that in which the search began.
	Epoch int
}

// Capacity returns how many rows, up to page, and bytes a sweep may read now. No rows: there is too little room. While
// the stream is live, sweeps have at most three quarters of the window, and half of it once the window was full:
// neither do streamed rows wait behind the whole backlog, nor the backlog until the stream pauses.
func (c *Core) Capacity(page int) (rows, bytes int) {
	c.lock()
	defer c.mu.Unlock()
	w := &c.mu.window
	share := c.limits.Messages
	switch {
	case !c.mu.term.live:
	case w.full:
		share = max(share/2, 1)
	default:
		share = max(share*3/4, 1)
	}
	if !c.publishing() {
		return 0, 0
	}
	room := min(share-w.swept, c.limits.Messages-w.messages)
	if room < min(page, max(share/8, 1)) || w.bytes >= c.limits.Bytes/2 {
		w.lacks(c.mu.now)
		return 0, 0
	}
	return min(page, room), min(c.limits.Bytes/4, c.limits.Bytes-w.bytes)
}

// Search begins a search, which Swept or SweptRuns ends. It returns the ids from one to another that are in memory.
// Until its end, the core remembers what leaves the memory: the search may still see such a row.
func (c *Core) Search(from, upTo int64) (held []int64) {
	c.lock()
	defer c.mu.Unlock()
	c.mu.gone = make(map[outbox.Ref]struct{})
	for ref := range c.mu.registry {
		if ref.ID >= from && ref.ID <= upTo {
			held = append(held, ref.ID)
		}
	}
	return held
}

// Swept takes rows without a key that a sweep has read. N is how many it has handled until there was no more room.
func (c *Core) Swept(r Read) (out Out, n int) {
	c.lock()
	defer c.mu.Unlock()
	gone := c.mu.gone
	c.mu.gone = nil
	if !c.sweeps(r) {
		return Out{}, 0
	}
	for i, m := range r.Messages {
		_, left := gone[m.Ref()]
		switch {
		case left || c.mu.registry.holds(m.Ref()) || m.OrderingKey != nil: // its key was set meanwhile
		case c.lacksPlace(m):
		case !c.hasRoom(m, false):
			return out, i
		default:
			c.take(m, r.Position)
			if out.Swept++; m.Superseded {
				out.Settle = append(out.Settle, coalesced(m))
			} else {
				c.leaves(m, &out)
			}
		}
	}
	return out, len(r.Messages)
}

// SweptRuns takes the first rows of keys, in order, of which ChooseRuns has returned the ids. Those of other keys than
// expected do not leave.
func (c *Core) SweptRuns(chosen Chosen, r Read) (out Out) {
	c.lock()
	defer c.mu.Unlock()
	read := make(map[outbox.Ref]*outbox.Message, len(r.Messages))
	for _, m := range r.Messages {
		read[m.Ref()] = m
	}
	valid := c.sweeps(r)
	for _, run := range chosen {
		key := *run[0].OrderingKey
		k := c.mu.keys.byKey[key]
		if k == nil || k.place != swept {
			continue
		}
		taken, dropped := 0, 0
		for _, row := range run {
			m := read[row.Ref]
			if !valid || m == nil || m.OrderingKey == nil || *m.OrderingKey != key || !c.follows(m, taken, dropped) {
				break
			}
			if c.take(m, r.Position); m.Superseded {
				dropped++
				out.Settle = append(out.Settle, coalesced(m))
			} else {
				taken++
				k.line = append(k.line, m)
			}
		}
		out.Swept += taken + dropped
		k.dropping += dropped
		if taken+dropped < len(run) {
			k.rows = 0
		}
		switch {
		case taken > 0:
			c.mu.keys.queued += taken - 1
			c.leaves(k.line[0], &out)
		case dropped == 0:
			c.mu.keys.lookAgain(key, k)
		default:
			k.place = draining
		}
	}
	c.Wake.Send()
	return out
}

// follows reports whether a row leaves in the run of its key, behind some that were taken, or dropped as superseded.
// The successor of a superseded row leaves once that is gone, or the two could change places.
func (c *Core) follows(m *outbox.Message, taken, dropped int) bool {
	switch {
	case c.mu.registry.holds(m.Ref()), !c.hasRoom(m, false):
		return false
	case m.Superseded:
		return taken == 0
	case dropped > 0, m.Unread > 0 && taken > 0:
		return false
	}
	return !c.lacksPlace(m)
}

// sweeps reports whether rows that were read may leave: this relay certainly leads in the epoch of the search.
func (c *Core) sweeps(r Read) bool {
	return c.publishing() && r.Epoch == c.mu.term.epoch && !c.late()
}

func (c *Core) take(m *outbox.Message, position uint64) {
	m.Server = c.mu.term.server
	c.mu.marks.swept(m)
	c.hold(m, position)
	c.mu.window.swept++
}

func coalesced(m *outbox.Message) outbox.Settlement {
	return outbox.Settlement{
		Message: m, Decision: outbox.Decision{Action: outbox.Delete, Reason: outbox.ReasonCoalesced},
	}
}

// ChooseRows returns the ids of rows without a key to read, and asks for look-ups of the keys of others. Read is how
// many of the rows it has handled until there was no more room.
func (c *Core) ChooseRows(found []outbox.Candidate, most Most) (ids []int64, read int) {
	c.lock()
	defer c.mu.Unlock()
	bytes := most.Bytes
	for i, row := range found {
		switch {
		case c.mu.registry.holds(row.Ref):
		case row.OrderingKey != nil:
			c.wantKey(*row.OrderingKey, row.Due != nil)
		case len(ids) >= most.Rows || (len(ids) > 0 && row.Size > bytes):
			return ids, i
		default:
			ids = append(ids, row.ID)
			bytes -= row.Size
		}
	}
	return ids, len(found)
}

// Most limits what a sweep reads.
type Most struct{ Rows, Bytes int }

// Chosen are the runs of the keys to read.
type Chosen []outbox.Run

// IDs are the ids of the rows.
func (c Chosen) IDs() (ids []int64) {
	for _, run := range c {
		for _, row := range run {
			ids = append(ids, row.ID)
		}
	}
	return ids
}

// ChooseRuns returns the rows to read, of at most this many keys, and remembers the other keys.
func (c *Core) ChooseRuns(found Found, keys int, most Most) (chosen Chosen) {
	c.lock()
	defer c.mu.Unlock()
	if found.Failed || found.Epoch != c.mu.term.epoch { // the answer may come from another server
		for _, key := range found.Asked {
			c.mu.keys.want(key)
		}
		return nil
	}
	c.saw(found.Snapshot)
	if found.First {
		c.mu.keys.complete = c.mu.unseen.forgottenAt == 0 && c.mu.unseen.all(c.mu.keys.missed)
	}
	rows, bytes := 0, 0
	for _, run := range c.ofRuns(found, keys) {
		k, fits := c.mu.keys.byKey[*run[0].OrderingKey], outbox.Run(nil)
		for _, row := range run {
			if row.Superseded != run[0].Superseded || !row.Ready || c.mu.registry.holds(row.Ref) || // it is about to go
				rows > 0 && (rows >= most.Rows || bytes+row.Size > most.Bytes) {
				break
			}
			fits, rows, bytes = append(fits, row), rows+1, bytes+row.Size
		}
		if len(fits) < len(run) {
			k.rows = 0
		}
		if len(fits) == 0 {
			c.mu.keys.want(*run[0].OrderingKey)
			continue
		}
		chosen = append(chosen, fits)
	}
	if found.Last {
		c.mu.keys.passed(found.Pass)
	}
	return chosen
}

// MissedDue makes sweeps look again at due rows of which some were not taken: another session has locked them, or there
// was no room.
func (c *Core) MissedDue() {
	c.lock()
	defer c.mu.Unlock()
	c.mu.due = true
}

// lacksPlace reports whether a row must wait in the table because its body was not read, and the line is full.
func (c *Core) lacksPlace(m *outbox.Message) bool {
	lacks := m.Unread > 0 && len(c.mu.large.line) >= max(c.limits.Messages/4, 1)
	c.mu.large.more = c.mu.large.more || lacks
	return lacks
}

// leaves publishes a swept message, or lets it wait until its body is read.
func (c *Core) leaves(m *outbox.Message, out *Out) {
	if m.Unread == 0 {
		out.Publish = append(out.Publish, m)
		return
	}
	c.mu.large.line = append(c.mu.large.line, m)
	c.Bodies.Send()
}

// NextBody returns the next swept row whose body is to be read; nil: none now. It must be reported to BodyRead. Only
// one large row is in memory, so the next one follows when it has left.
func (c *Core) NextBody() (m *outbox.Message) {
	c.lock()
	defer c.mu.Unlock()
	if c.mu.large.row != nil || len(c.mu.large.line) == 0 || !c.publishing() {
		return nil
	}
	m, c.mu.large.line = c.mu.large.line[0], c.mu.large.line[1:]
	ref := m.Ref()
	c.mu.large.row = &ref
	c.mu.window.bytes -= m.Size()
	return m
}

// endLarge lets the next large row have its turn.
func (c *Core) endLarge() {
	c.mu.large.row = nil
	c.Bodies.Send()
	if c.mu.large.more && len(c.mu.large.line) == 0 && c.mu.term.leader {
		c.mu.large.more = false
		c.wantDue()
		c.wantBacklog(anyID)
	}
}

// leaveBodies leaves the rows whose bodies are not read yet in the table.
func (c *Core) leaveBodies() {
	line := c.mu.large.line
	c.mu.large.line, c.mu.large.more = nil, false
	for _, m := range line {
		c.leaveUnsent(m)
	}
}

// leaveUnsent leaves a row that was swept and not published in the table.
func (c *Core) leaveUnsent(m *outbox.Message) {
	if m.OrderingKey != nil {
		c.leaveQueue(c.mu.keys.stop(m))
	}
	c.release(m)
}

// BodyRead publishes a message of NextBody, with the row as it was read together with its body; nil: the row stays in
// the table.
func (c *Core) BodyRead(m, read *outbox.Message) Out {
	c.lock()
	defer c.mu.Unlock()
	sameKey := func() bool {
		return (m.OrderingKey == nil) == (read.OrderingKey == nil) &&
			(m.OrderingKey == nil || *m.OrderingKey == *read.OrderingKey)
	}
	leads := c.mu.term.leader && !c.late() && c.mu.lease.rest(c.mu.now) == 0
	if !c.publishing() || !leads || read == nil || !sameKey() {
		c.leaveUnsent(m)
		return Out{}
	}
	m.Row, m.Defects, m.TakenAt = read.Row, read.Defects, c.mu.lease.owned
	m.PossibleDuplicate = m.PossibleDuplicate || read.PossibleDuplicate
	c.mu.marks.swept(m) // another term may have begun
	return publish(m)
}

package core

import "github.com/cdc-relay/cdc-relay/outbox"

// Capacity returns how many rows, up to page, and bytes a claim may take now. No rows: there is too little room.
// While the stream is live, claims have at most three quarters of the window, and half of it once the window was full:
// neither do streamed rows wait behind the whole backlog, nor the backlog until the stream pauses.
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
	room := min(share-w.claimed, c.limits.Messages-w.messages)
	if room < min(page, max(share/4, 1)) || w.bytes >= c.limits.Bytes/2 {
		w.lacks(c.mu.now)
		return 0, 0
	}
	return min(page, room), min(c.limits.Bytes/4, c.limits.Bytes-w.bytes)
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

// Most limits a claim.
type Most struct{ Rows, Bytes int }

// ChooseRows returns a claim of rows without a key, and asks for look-ups of the keys of the others if keys is set.
// Read is how many of the rows it has handled until there was no more room.
func (c *Core) ChooseRows(found []outbox.Candidate, keys bool, most Most) (claim *Claim, read int) {
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
				c.wantKey(*row.OrderingKey, row.Due != nil)
			}
		case row.Size > most.Bytes && c.mu.large != nil:
			c.mu.large.wait(row)
		case len(keyless) >= most.Rows || (len(keyless) > 0 && row.Size > bytes):
			return c.choose(keyless, most), read
		default:
			keyless = append(keyless, row)
			bytes -= row.Size
		}
		read = i + 1
	}
	return c.choose(keyless, most), len(found)
}

// choose puts rows into a claim: rows without a key, and for each key its head and the rows behind it, in order. It
// skips rows that are in memory or exceed the limits; their keys are looked up again.
func (c *Core) choose(rows []outbox.Candidate, most Most) *Claim {
	claim := &Claim{core: c}
	bytes, known, ended, superseded := 0, make(map[string]bool), make(map[string]bool), make(map[string]bool)
	for _, row := range rows {
		if key := row.OrderingKey; key != nil && !known[*key] {
			known[*key] = true
			claim.keys = append(claim.keys, *key)
		}
		over := len(claim.Rows) > 0 && (len(claim.Rows) >= most.Rows || bytes+row.Size > most.Bytes)
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
			claim.Large, row.Size = true, 0
		}
		c.mu.window.claims(1)
		c.mu.window.bytes += row.Size
		c.mu.registry.hold(row.Ref, 0, claim)
		claim.Rows = append(claim.Rows, row)
	}
	return claim
}

// ChooseRange returns a claim of the first plain rows of a range, which are known only at the lock. It keeps the stream
// from publishing them meanwhile, and reserves their room. It returns nil if too many rows of the range are in memory.
func (c *Core) ChooseRange(from, upTo int64, most Most) (*Claim, *outbox.Range) {
	c.lock()
	defer c.mu.Unlock()
	in := &outbox.Range{From: from, UpTo: upTo, Rows: most.Rows, Size: most.Bytes / most.Rows, Held: []int64{}}
	for ref := range c.mu.registry {
		if ref.ID >= from && ref.ID <= upTo {
			in.Held = append(in.Held, ref.ID)
		}
	}
	if len(in.Held) > c.limits.Messages {
		return nil, nil
	}
	claim := &Claim{core: c, searches: in}
	c.mu.searching = claim
	c.reserve(in, 1)
	return claim, in
}

// reserve reserves the room of a claim of a range, or with -1 returns it.
func (c *Core) reserve(in *outbox.Range, sign int) {
	c.mu.window.claims(sign * in.Rows)
	c.mu.window.bytes += sign * in.Rows * in.Size
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

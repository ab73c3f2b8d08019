package core

import (
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Claim is a set of rows that one transaction locks. It lives from before the lock until after the commit. All fields
// except Progress are guarded by the core's lock.
type Claim struct {
	// Progress is signalled at each answer of the broker.
	Progress chan struct{}

	chosen []outbox.Candidate
	// runs are the unpublished rows of each key. A key stays here until the claim ends.
	runs map[string][]*outbox.Message
	keys []string
	// flying are the messages that are published and unanswered.
	flying map[outbox.Ref]*outbox.Message
	// answered are the decisions for answered messages; unsent are rows that were locked but not published.
	answered []outbox.Settlement
	unsent   []*outbox.Message
	begun    time.Time // before the lock
	// ended: the claim waits for no more answers. written: its transaction is over. Answers between the two go to
	// meanwhile.
	ended, written bool
	meanwhile      []answer
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
	if !c.publishing() || w.messages+min(page, max(share/4, 1)) > share || w.bytes >= c.limits.Bytes/2 {
		return 0, 0
	}
	return min(page, share-w.messages), min(c.limits.Bytes/4, c.limits.Bytes-w.bytes)
}

// Free returns the rows that are not in memory.
func (c *Core) Free(rows []outbox.Candidate) (free []outbox.Candidate) {
	c.lock()
	defer c.mu.Unlock()
	for _, row := range rows {
		if !c.mu.registry.holds(row.Ref) {
			free = append(free, row)
		}
	}
	return free
}

// Begin starts a claim. Rows are rows without a key, and for each key its head and the rows behind it, in order. Begin
// skips rows that are in memory or exceed the limits; their keys are looked up again.
func (c *Core) Begin(rows []outbox.Candidate, mostRows, mostBytes int) *Claim {
	c.lock()
	defer c.mu.Unlock()
	claim := &Claim{
		Progress: make(chan struct{}, 1), runs: make(map[string][]*outbox.Message),
		flying: make(map[outbox.Ref]*outbox.Message), begun: c.mu.now,
	}
	bytes, ended, superseded := 0, make(map[string]bool), make(map[string]bool)
	for _, row := range rows {
		if row.OrderingKey != nil {
			if _, known := claim.runs[*row.OrderingKey]; !known {
				claim.keys = append(claim.keys, *row.OrderingKey)
				claim.runs[*row.OrderingKey] = nil
			}
		}
		over := len(claim.chosen) > 0 && (len(claim.chosen) >= mostRows || bytes+row.Size > mostBytes)
		over = over || c.mu.window.messages >= c.limits.Messages // the stream has filled it since Capacity
		if over || !row.Ready || c.mu.registry.holds(row.Ref) || (row.OrderingKey != nil && ended[*row.OrderingKey]) {
			if row.OrderingKey != nil {
				ended[*row.OrderingKey] = true
			} else if over {
				c.missed(row)
			}
			continue
		}
		if row.OrderingKey != nil {
			if superseded[*row.OrderingKey] = superseded[*row.OrderingKey] || row.Superseded; superseded[*row.OrderingKey] && !row.Superseded {
				continue // it leaves once the superseded rows are gone
			}
		}
		bytes += row.Size
		c.mu.window.messages++
		c.mu.window.bytes += row.Size
		c.mu.registry.hold(row.Ref, 0, claim)
		claim.chosen = append(claim.chosen, row)
	}
	return claim
}

// missed makes sweeps find a keyless row again that a claim did not get.
func (c *Core) missed(row outbox.Candidate) {
	switch {
	case row.Due != nil:
		c.mu.due = true
	case c.mu.term.leader:
		c.mu.backlog = min(c.mu.backlog, passFrom(row.ID))
	}
}

// Rows returns the ids to lock.
func (claim *Claim) Rows() []int64 {
	ids := make([]int64, len(claim.chosen))
	for i, row := range claim.chosen {
		ids[i] = row.ID
	}
	return ids
}

// Locked records which rows were locked. All locked rows committed before the position. If valid is false, nothing is published: it is uncertain whether this relay may claim these rows.
func (c *Core) Locked(claim *Claim, locked []*outbox.Message, position uint64, valid bool) (out Out) {
	c.lock()
	defer c.mu.Unlock()
	if !valid {
		position = 0 // it may belong to another server
	}
	valid = valid && c.mayPublish(claim)
	got := make(map[outbox.Ref]*outbox.Message, len(locked))
	for _, m := range locked {
		got[m.Ref()] = m
	}
	ended := make(map[string]bool)
	for _, row := range claim.chosen {
		m := got[row.Ref]
		if m == nil {
			c.mu.registry.forget(row.Ref)
			c.letGo(row.Size)
			if row.OrderingKey == nil {
				c.missed(row)
			} else {
				ended[*row.OrderingKey] = true
			}
			continue
		}
		c.mu.window.bytes += m.Size() - row.Size
		c.mu.registry.hold(row.Ref, position, claim)
		c.mu.marks.claimed(m)
		if !sameKey(m.OrderingKey, row.OrderingKey) { // somebody has changed it; its new key may have other rows
			if row.OrderingKey != nil {
				ended[*row.OrderingKey] = true
			}
			claim.unsent = append(claim.unsent, m)
			continue
		}
		superseded := valid && m.Superseded
		if m.OrderingKey != nil && (superseded || row.Superseded) {
			ended[*m.OrderingKey] = true // its successor leaves after the commit, or the two could change places
		}
		switch {
		case superseded:
			claim.answered = append(claim.answered, outbox.Settlement{
				Message: m, Decision: outbox.Decision{Action: outbox.Delete, Reason: outbox.ReasonCoalesced},
			})
		case !valid || (m.OrderingKey != nil && ended[*m.OrderingKey]):
			claim.unsent = append(claim.unsent, m)
		case m.OrderingKey == nil:
			out.Publish = append(out.Publish, c.fly(claim, m))
		default:
			claim.runs[*m.OrderingKey] = append(claim.runs[*m.OrderingKey], m)
		}
	}
	for _, key := range claim.keys {
		if m := c.follow(claim, key); m != nil {
			out.Publish = append(out.Publish, m)
		}
	}
	return out
}

func sameKey(a, b *string) bool { return a == b || a != nil && b != nil && *a == *b }

func (c *Core) fly(claim *Claim, m *outbox.Message) *outbox.Message {
	m.TakenAt = c.mu.now
	claim.flying[m.Ref()] = m
	return m
}

// claimFor limits how long after its start a claim publishes. It must stay well below store.IdleTimeout, after which
// the server ends the transaction of a frozen relay.
const claimFor = 5 * time.Second

func (c *Core) mayPublish(claim *Claim) bool {
	return c.publishing() && outbox.Elapsed(claim.begun, c.mu.now) <= claimFor
}

// follow returns the next message of a key's run.
func (c *Core) follow(claim *Claim, key string) *outbox.Message {
	run := claim.runs[key]
	if len(run) == 0 {
		return nil
	}
	if !c.mayPublish(claim) {
		c.endRun(claim, key)
		return nil
	}
	claim.runs[key] = run[1:]
	return c.fly(claim, run[0])
}

func (c *Core) endRun(claim *Claim, key string) {
	claim.unsent = append(claim.unsent, claim.runs[key]...)
	claim.runs[key] = nil
}

// answered records the decision for a claimed row, and returns the next message of its key.
func (c *Core) answered(claim *Claim, s outbox.Settlement) (next *outbox.Message) {
	m := s.Message
	delete(claim.flying, m.Ref())
	claim.answered = append(claim.answered, s)
	signal(claim.Progress)
	if m.OrderingKey == nil {
		return nil
	}
	if s.Decision.Action != outbox.Delete && !s.Decision.KeyGoesOn {
		c.endRun(claim, *m.OrderingKey)
		return nil
	}
	return c.follow(claim, *m.OrderingKey)
}

// Open counts the unanswered messages of a claim, and the rows still to publish.
func (c *Core) Open(claim *Claim) (flying, waiting int) {
	c.lock()
	defer c.mu.Unlock()
	for _, run := range claim.runs {
		waiting += len(run)
	}
	return len(claim.flying), waiting
}

// CutRuns ends the runs of a claim that has published for its longest time.
func (c *Core) CutRuns(claim *Claim) {
	c.lock()
	defer c.mu.Unlock()
	for _, key := range claim.keys {
		c.endRun(claim, key)
	}
}

// Ending is what a claim writes before it commits.
type Ending struct {
	// Answered rows have an answer. Unsent rows were locked but not published. Late rows have no answer yet; they are
	// copies.
	Answered, Unsent, Late []outbox.Settlement
}

// All returns all rows of the three lists.
func (e Ending) All() []outbox.Settlement {
	return append(append(append([]outbox.Settlement(nil), e.Answered...), e.Unsent...), e.Late...)
}

// End ends a claim. Later answers are settled one by one.
func (c *Core) End(claim *Claim) (e Ending) {
	c.lock()
	defer c.mu.Unlock()
	claim.ended = true
	e.Answered = claim.answered
	for _, key := range claim.keys {
		c.endRun(claim, key)
	}
	for _, m := range claim.unsent {
		e.Unsent = append(e.Unsent, outbox.Settlement{Message: m, Decision: outbox.Decision{Action: outbox.Release}})
	}
	for ref := range claim.flying { // a copy: the publisher still uses the message itself
		late := &outbox.Message{ID: ref.ID, MessageID: ref.MessageID}
		e.Late = append(e.Late, outbox.Settlement{Message: late, Decision: outbox.Decision{Action: outbox.Postpone}})
	}
	return e
}

// Ended records whether a claim has committed. If it has not, the settler writes its answered rows, without the lock.
func (c *Core) Ended(claim *Claim, e Ending, committed bool) (out Out) {
	c.lock()
	defer c.mu.Unlock()
	claim.written = true
	for _, s := range e.Unsent {
		c.giveBack(s.Message)
	}
	for _, late := range e.Late {
		if m := claim.flying[late.Message.Ref()]; m != nil && committed {
			m.AvailableAt = late.Message.AvailableAt // a later answer settles the row only while it has this time
		}
	}
	deleted, locked := make(map[string]int), make(map[string]bool)
	for _, list := range [][]outbox.Settlement{e.Answered, e.Unsent} {
		for _, s := range list {
			if s.Message.OrderingKey != nil {
				locked[*s.Message.OrderingKey] = true
			}
		}
	}
	for _, s := range e.Answered {
		switch {
		case s.Decision.Action == outbox.Release:
			c.giveBack(s.Message)
		case committed:
			c.settle(s)
			if s.Message.OrderingKey != nil && s.Decision.Action == outbox.Delete {
				deleted[*s.Message.OrderingKey]++
			}
		default:
			out.Settle = append(out.Settle, s)
		}
	}
	for _, key := range claim.keys {
		c.endKey(claim, key, deleted[key], locked[key])
	}
	for _, late := range claim.meanwhile {
		delete(claim.flying, late.Message.Ref())
		out.Settle = append(out.Settle, c.resolved(late).Settle...) // no message is queued behind one of a claim
	}
	for i := range out.Settle {
		out.Settle[i].Tried = true // the server may have committed it
	}
	return out
}

// endKey forgets a key of which all rows were deleted, and asks for a look-up of any other. The look-up waits until an
// unanswered message is answered. Locked: the claim has locked rows of the key.
func (c *Core) endKey(claim *Claim, key string, deleted int, locked bool) {
	k := c.mu.keys.byKey[key]
	if k == nil || k.place != claimed {
		return
	}
	if k.rows > 0 && deleted == k.rows {
		c.mu.keys.drop(key)
		return
	}
	for _, m := range claim.flying {
		if m.OrderingKey != nil && *m.OrderingKey == key {
			k.line = []*outbox.Message{m} // even if another relay has deleted its row
		}
	}
	if locked || len(k.line) > 0 {
		c.mu.keys.want(key)
	} else {
		c.mu.keys.lookAgain(key, k)
	}
	signal(c.Wake)
}

// giveBack forgets a claimed row that stays unchanged in the table.
func (c *Core) giveBack(m *outbox.Message) {
	c.mu.registry.forget(m.Ref())
	c.letGo(m.Size())
	if m.OrderingKey == nil {
		c.missed(outbox.Candidate{Ref: m.Ref(), Due: m.AvailableAt})
	}
}

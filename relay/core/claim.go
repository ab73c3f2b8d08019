package core

import (
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Claim is rows that one transaction holds locked, from before the lock until after the commit. Its fields but Progress
// belong to the core and its lock.
type Claim struct {
	// Progress is signalled at each answer of the broker.
	Progress chan struct{}

	chosen []outbox.Candidate
	// runs are what follows in each key, not published yet. A key is here until the claim ends.
	runs map[string][]*outbox.Message
	keys []string
	// flying are published and have no answer.
	flying map[outbox.Ref]*outbox.Message
	// answered is what becomes of those that have one, unsent those that were locked and not published.
	answered []outbox.Settlement
	unsent   []*outbox.Message
	begun    time.Time // before the lock
	// ended: no more answers are waited for. written: what became of the rows is written; meanwhile came in between.
	ended, written bool
	meanwhile      []answer
}

// Capacity is how many rows and bytes a claim of at most so many rows may take now; no rows: there is too little room.
// What the stream finds no room for stands behind all that waits in the table: while it is live it has a quarter of the
// window for itself, and half of it once the window was full.
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

// TakeWanted hands out keys to look up. Each is answered by Found or NotFound.
func (c *Core) TakeWanted(n int) (keys []string) {
	c.lock()
	defer c.mu.Unlock()
	return c.mu.keys.take(n)
}

// WantKeys has keys looked up of which rows are due.
func (c *Core) WantKeys(keys []string) {
	c.lock()
	defer c.mu.Unlock()
	for _, key := range keys {
		k := c.mu.keys.remember(key)
		switch {
		case k == nil:
			continue // the next pass over all keys finds it
		case k.place == directly:
			k.place = behind
		case k.place == parked:
			c.mu.keys.want(key)
		}
		c.mu.keys.look(key, k)
	}
}

// NotFound puts keys back whose look-up failed.
func (c *Core) NotFound(asked []string) {
	c.lock()
	defer c.mu.Unlock()
	for _, key := range asked {
		c.mu.keys.want(key)
	}
}

// Found takes the first rows of keys in: of those asked for, or of a pass over all keys (asked is nil). The snapshot
// is of before the query, which began in this epoch. It returns the rows of keys that are claimed from now on, at most n.
func (c *Core) Found(asked []string, runs []outbox.Run, snapshot outbox.Snapshot, epoch, n int) (take []outbox.Candidate) {
	c.lock()
	defer c.mu.Unlock()
	if epoch != c.mu.term.epoch { // the answer may be of another server
		for _, key := range asked {
			c.mu.keys.want(key)
		}
		return nil
	}
	c.saw(snapshot)
	found := make(map[string]bool, len(runs))
	for _, run := range runs {
		key := *run[0].OrderingKey
		found[key] = true
		if c.found(key, run[0], asked != nil, n > 0) {
			take = append(take, run...)
			n--
		}
	}
	for _, key := range asked {
		if !found[key] {
			c.empty(key)
		}
	}
	return take
}

// found takes one head in, and tells whether its key is claimed for it.
func (c *Core) found(key string, head outbox.Candidate, asked, more bool) bool {
	o := &c.mu.keys
	held := c.mu.registry.holds(head.Ref)
	k := o.byKey[key]
	switch {
	case k == nil && asked:
		return false // its term has ended
	case k == nil && !o.leads && (held || !head.Ready):
		return false
	case k == nil && head.Ready && more && !held:
		k = &keyState{place: behind} // it is not kept beyond the claim if there are too many keys
		o.add(key, k)
	case k == nil:
		if k = o.remember(key); k == nil {
			o.miss(c.mu.unseen.seq)
			return false
		}
	}
	k.pass = o.pass
	switch {
	case k.place == claimed && !asked:
		return false
	case k.place == directly:
		return false // what it has in memory leaves first, and the stream brings what follows
	case held && c.mu.registry.setAside(head.Ref):
		o.park(key, k)
		return false
	case held || k.flying != nil || len(k.queue) > 0:
		k.place = behind // until it has landed
		return false
	case !head.Ready && k.place == wanted:
		return false // since the query, perhaps: the row may be gone
	case !head.Ready:
		o.park(key, k)
		return false
	case !more:
		k.place = behind
		o.look(key, k)
		return false
	}
	k.place = claimed
	return true
}

// empty takes in that a key has no visible rows.
func (c *Core) empty(key string) {
	k := c.mu.keys.byKey[key]
	switch {
	case k == nil || k.place != claimed:
	case k.flying == nil && k.left < c.mu.unseen.visible():
		c.mu.keys.drop(key)
	default:
		c.mu.keys.want(key)
	}
}

// Free leaves out the rows that are in memory already.
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

// Begin starts a claim of rows: such without a key, and of each key the oldest and what follows, in order. It takes what
// there is room for and nothing else has in memory; the keys of the others are looked up again.
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
				continue // it leaves once those are gone
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

// missed has a row without a key found again that a claim wanted and did not get.
func (c *Core) missed(row outbox.Candidate) {
	switch {
	case !row.Due.IsZero():
		c.mu.due = true
	case c.mu.term.leader:
		c.mu.backlog = min(c.mu.backlog, row.ID)
	}
}

// Rows are the ids that the claim is to lock.
func (claim *Claim) Rows() []int64 {
	ids := make([]int64, len(claim.chosen))
	for i, row := range claim.chosen {
		ids[i] = row.ID
	}
	return ids
}

// Locked takes in what was locked of a claim, and returns what is to be published now. Every row had committed before
// the position. Without valid nothing is published: whether the relay may claim these rows was in doubt.
func (c *Core) Locked(claim *Claim, locked []*outbox.Message, position uint64, valid bool) (publish []*outbox.Message) {
	c.lock()
	defer c.mu.Unlock()
	if !valid {
		position = 0 // perhaps of another server
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
		c.mark(m)
		superseded := valid && m.Superseded
		if m.OrderingKey != nil && (superseded || row.Superseded) {
			ended[*m.OrderingKey] = true // what takes its place leaves after the commit, or they could change places
		}
		switch {
		case superseded:
			claim.answered = append(claim.answered, outbox.Settlement{
				Message: m, Decision: outbox.Decision{Action: outbox.Delete, Reason: outbox.ReasonCoalesced},
			})
		case !valid || (m.OrderingKey != nil && ended[*m.OrderingKey]):
			claim.unsent = append(claim.unsent, m)
		case m.OrderingKey == nil:
			publish = append(publish, c.fly(claim, m))
		default:
			claim.runs[*m.OrderingKey] = append(claim.runs[*m.OrderingKey], m)
		}
	}
	for _, key := range claim.keys {
		if m := c.follow(claim, key); m != nil {
			publish = append(publish, m)
		}
	}
	return publish
}

// mark marks a claimed message that may have been published before.
func (c *Core) mark(m *outbox.Message) {
	_, found := c.mu.unknown.rows[m.Ref()]
	fresh := m.AvailableAt.IsZero() && m.ID <= c.mu.term.boundary
	m.PossibleDuplicate = m.PossibleDuplicate || found || c.mu.unknown.many || fresh || m.ID <= c.mu.restarted
}

func (c *Core) fly(claim *Claim, m *outbox.Message) *outbox.Message {
	m.TakenAt = c.mu.now
	claim.flying[m.Ref()] = m
	return m
}

// claimFor is how long after its beginning a claim publishes: well below the time after which the server ends the
// transaction of a relay that is frozen (store.IdleTimeout).
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

// answered takes in what becomes of a claimed row, and returns what follows it in its key.
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

// Open counts the messages of a claim that have no answer, and those still to be published.
func (c *Core) Open(claim *Claim) (flying, waiting int) {
	c.lock()
	defer c.mu.Unlock()
	for _, run := range claim.runs {
		waiting += len(run)
	}
	return len(claim.flying), waiting
}

// CutRuns ends the runs of a claim: it is as old as it may become.
func (c *Core) CutRuns(claim *Claim) {
	c.lock()
	defer c.mu.Unlock()
	for _, key := range claim.keys {
		c.endRun(claim, key)
	}
}

// Ending is what a claim writes before it commits.
type Ending struct {
	// Answered are rows with an answer, Unsent were locked and not published, Late have no answer yet: they are copies.
	Answered, Unsent, Late []outbox.Settlement
}

// All are all of them.
func (e Ending) All() []outbox.Settlement {
	return append(append(append([]outbox.Settlement(nil), e.Answered...), e.Unsent...), e.Late...)
}

// End ends a claim: answers that come from now on are settled one by one.
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
	for ref := range claim.flying { // the publisher works on the message itself
		late := &outbox.Message{ID: ref.ID, MessageID: ref.MessageID}
		e.Late = append(e.Late, outbox.Settlement{Message: late, Decision: outbox.Decision{Action: outbox.Postpone}})
	}
	return e
}

// Ended takes in whether a claim has committed. If not, the answers are the settler's from now on.
func (c *Core) Ended(claim *Claim, e Ending, committed bool) (settle []outbox.Settlement) {
	c.lock()
	defer c.mu.Unlock()
	claim.written = true
	for _, s := range e.Unsent {
		c.giveBack(s.Message)
	}
	for _, late := range e.Late {
		if m := claim.flying[late.Message.Ref()]; m != nil && committed {
			m.AvailableAt = late.Message.AvailableAt // the fence of a later answer
		}
	}
	for _, s := range e.Answered {
		switch {
		case s.Decision.Action == outbox.Release:
			c.giveBack(s.Message)
		case committed:
			c.settle(s)
		default:
			settle = append(settle, s)
		}
	}
	for _, key := range claim.keys {
		c.endKey(claim, key)
	}
	for _, late := range claim.meanwhile {
		delete(claim.flying, late.Message.Ref())
		if write, _ := c.resolved(late); write { // nothing is queued behind a message of a claim
			settle = append(settle, late.Settlement)
		}
	}
	return settle
}

// endKey has the key of a claim that has ended looked up, once its message without an answer has one.
func (c *Core) endKey(claim *Claim, key string) {
	k := c.mu.keys.byKey[key]
	if k == nil || k.place != claimed {
		return
	}
	for _, m := range claim.flying {
		if m.OrderingKey != nil && *m.OrderingKey == key {
			k.flying = m // also if another relay has deleted its row meanwhile
		}
	}
	c.mu.keys.want(key)
	signal(c.Wake)
}

// giveBack forgets a claimed row that stays in the table as it is.
func (c *Core) giveBack(m *outbox.Message) {
	c.mu.registry.forget(m.Ref())
	c.letGo(m.Size())
	if m.OrderingKey == nil {
		c.missed(outbox.Candidate{Ref: m.Ref(), Due: m.AvailableAt})
	}
}

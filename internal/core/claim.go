package core

import (
	"slices"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/signal"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Claim is a set of rows that one transaction locks. The Choose methods return it. The caller then locks the rows and
// calls Locked, and End once it waits for no more answers. Done ends each claim, also one without rows or without a
// lock. The core's lock guards all fields that are not exported.
type Claim struct {
	core *Core
	// Rows are the chosen rows, until Locked. Large: it is a single row that exceeds the bytes of a claim, so its body
	// takes long to read and may fill the memory. One such row is in memory at a time, beside the others. After Locked,
	// Large means that the body must be read now, and Read called.
	Rows  []outbox.Candidate
	Large bool
	// Progress is signalled at each answer.
	Progress signal.Signal

	// searches is the range whose rows are being locked; nil: the rows were chosen before.
	searches *outbox.Range
	keys     []string
	// alive is when the transaction was certainly alive.
	alive time.Time
	// locked are the messages of the locked rows, until they leave.
	locked map[outbox.Ref]*outbox.Message
	// runs are the messages of each key that have not left yet.
	runs map[string][]*outbox.Message
	// flying are the messages that are published and unanswered.
	flying map[outbox.Ref]*outbox.Message
	// answered are the decisions for answered messages; unsent are locked rows that do not leave.
	answered []outbox.Settlement
	unsent   []*outbox.Message
	// ended: the claim waits for no more answers. postponed are copies of the messages that have none, because the
	// publisher still uses the messages. kept are their answers that came before Done.
	ended     bool
	postponed []*outbox.Message
	kept      []answer
}

// publishFor is how long a claim publishes after its transaction was certainly alive, also in a process that was
// paused. It must stay well below store.IdleTimeout, after which the server ends the transaction.
const publishFor = 5 * time.Second

// Lock is what a claim has locked.
type Lock struct {
	// Messages are the locked rows. All of them committed before the position.
	Messages []*outbox.Message
	Position uint64
	// Alive is when the transaction was certainly alive.
	Alive time.Time
	// Epoch is that in which the rows were chosen. Owned: the slot had the owner that this relay believed it to have.
	Epoch int
	Owned bool
}

// Locked records which of the chosen rows were locked, marks their messages, and publishes those that leave at once.
// None leaves if it is uncertain whether this relay may claim these rows, or if the publisher takes no messages.
func (cl *Claim) Locked(l Lock) Out {
	c := cl.core
	c.lock()
	defer c.mu.Unlock()
	valid := l.Owned && l.Epoch == c.mu.term.epoch
	if !valid {
		l.Position = 0 // it may belong to another server
		if c.mu.term.leader {
			c.doubt()
		}
	}
	cl.found(l.Messages)
	cl.locked = make(map[outbox.Ref]*outbox.Message, len(l.Messages))
	for _, m := range l.Messages {
		cl.locked[m.Ref()] = m
	}
	for _, row := range cl.Rows {
		m := cl.locked[row.Ref]
		if m == nil {
			c.notLocked(row)
			continue
		}
		if c.mu.large == nil || c.mu.large.ref != row.Ref {
			c.mu.window.bytes += m.Size() - row.Size
		}
		c.mu.registry.hold(row.Ref, l.Position, cl)
		c.mu.marks.claimed(m)
	}
	valid = valid && c.publishing()
	cl.Progress, cl.alive = signal.New(), l.Alive
	cl.Large = cl.Large && valid && len(l.Messages) > 0 && !l.Messages[0].Superseded
	if cl.Large {
		return Out{}
	}
	return cl.start(valid)
}

// covers reports whether the search of a claim may have locked a streamed row.
func (cl *Claim) covers(m *outbox.Message) bool {
	return cl != nil && m.OrderingKey == nil && m.ID >= cl.searches.From && m.ID <= cl.searches.UpTo
}

// found ends the search of a claim of a range: these rows were found and locked.
func (cl *Claim) found(messages []*outbox.Message) {
	if cl.searches == nil {
		return
	}
	c := cl.core
	c.reserve(cl.searches, -1)
	cl.searches, c.mu.searching = nil, nil
	for _, m := range messages {
		row := candidate(m)
		c.mu.window.claims(1)
		c.mu.window.bytes += row.Size
		cl.Rows = append(cl.Rows, row)
	}
}

// Read publishes the large row, whose body was read. The transaction was certainly alive at this time.
func (cl *Claim) Read(alive time.Time) Out {
	cl.core.lock()
	defer cl.core.mu.Unlock()
	cl.alive = alive
	return cl.start(cl.core.publishing())
}

// ReadFailed lets other large rows have their turn. The row is in memory until Done.
func (cl *Claim) ReadFailed() {
	cl.core.lock()
	defer cl.core.mu.Unlock()
	cl.core.endLarge()
	cl.core.Wake.Send()
}

// notLocked gives up a chosen row that another session has locked, changed or deleted.
func (c *Core) notLocked(row outbox.Candidate) {
	c.forget(row.Ref, row.Size)
	if row.OrderingKey == nil {
		c.missed(row)
	}
}

// start publishes the locked messages that leave at once: those without a key, and the first of each key.
func (cl *Claim) start(valid bool) (out Out) {
	valid = valid && cl.inTime()
	cl.runs, cl.flying = make(map[string][]*outbox.Message), make(map[outbox.Ref]*outbox.Message)
	ended := make(map[string]bool) // keys whose later rows do not leave
	for _, row := range cl.Rows {
		m := cl.locked[row.Ref]
		if m == nil || !sameKey(m.OrderingKey, row.OrderingKey) { // its new key may have other rows
			if row.OrderingKey != nil {
				ended[*row.OrderingKey] = true
			}
			if m != nil {
				cl.unsent = append(cl.unsent, m)
			}
			continue
		}
		superseded := valid && m.Superseded
		if m.OrderingKey != nil && (superseded || row.Superseded) {
			ended[*m.OrderingKey] = true // its successor leaves after the commit, or the two could change places
		}
		switch {
		case superseded:
			cl.answered = append(cl.answered, outbox.Settlement{
				Message: m, Decision: outbox.Decision{Action: outbox.Delete, Reason: outbox.ReasonCoalesced},
			})
		case !valid || (m.OrderingKey != nil && ended[*m.OrderingKey]):
			cl.unsent = append(cl.unsent, m)
		case m.OrderingKey == nil:
			out.Publish = append(out.Publish, cl.fly(m))
		default:
			cl.runs[*m.OrderingKey] = append(cl.runs[*m.OrderingKey], m)
		}
	}
	cl.Rows, cl.locked = nil, nil
	for _, key := range cl.keys {
		if m := cl.follow(key, valid); m != nil {
			out.Publish = append(out.Publish, m)
		}
	}
	return out
}

func sameKey(a, b *string) bool { return a == b || a != nil && b != nil && *a == *b }

func (cl *Claim) inTime() bool { return outbox.Elapsed(cl.alive, cl.core.mu.now) <= publishFor }

func (cl *Claim) fly(m *outbox.Message) *outbox.Message {
	m.TakenAt = cl.core.mu.now
	cl.flying[m.Ref()] = m
	return m
}

// follow returns the next message of a key, or nil.
func (cl *Claim) follow(key string, publishing bool) *outbox.Message {
	run := cl.runs[key]
	if len(run) == 0 {
		return nil
	}
	if !publishing || !cl.inTime() {
		cl.endRun(key)
		return nil
	}
	cl.runs[key] = run[1:]
	return cl.fly(run[0])
}

func (cl *Claim) endRun(key string) {
	cl.unsent = append(cl.unsent, cl.runs[key]...)
	delete(cl.runs, key)
}

// resolve takes the answer for a message of the claim, and publishes the next one of its key. Once the claim has ended,
// it keeps the answer until Done: only then the row's new time is known.
func (cl *Claim) resolve(a answer) Out {
	if cl.ended {
		cl.kept = append(cl.kept, a)
		return Out{}
	}
	m := a.Message
	delete(cl.flying, m.Ref())
	cl.answered = append(cl.answered, a.Settlement)
	cl.Progress.Send()
	if m.OrderingKey != nil && (a.Decision.Action == outbox.Delete || a.Decision.KeyGoesOn) {
		return publish(cl.follow(*m.OrderingKey, cl.core.publishing()))
	}
	return Out{}
}

// Flying counts the unanswered messages.
func (cl *Claim) Flying() int {
	cl.core.lock()
	defer cl.core.mu.Unlock()
	return len(cl.flying)
}

// Cut ends the runs: no more messages leave.
func (cl *Claim) Cut() {
	cl.core.lock()
	defer cl.core.mu.Unlock()
	cl.cut()
}

func (cl *Claim) cut() {
	for _, key := range cl.keys {
		cl.endRun(key)
	}
}

// End returns the decisions to write, in which Postpone stands for the messages without an answer. Later answers are
// settled one by one.
func (cl *Claim) End() (rows []outbox.Settlement) {
	cl.core.lock()
	defer cl.core.mu.Unlock()
	cl.ended = true
	cl.cut()
	rows = slices.Clone(cl.answered)
	for _, m := range cl.unsent {
		rows = append(rows, outbox.Settlement{Message: m, Decision: outbox.Decision{Action: outbox.Release}})
	}
	for ref := range cl.flying {
		late := &outbox.Message{Row: outbox.Row{ID: ref.ID, MessageID: ref.MessageID}}
		cl.postponed = append(cl.postponed, late)
		rows = append(rows, outbox.Settlement{Message: late, Decision: outbox.Decision{Action: outbox.Postpone}})
	}
	return rows
}

// Done takes back the rows of the claim. Committed: all decisions were written. Otherwise the server may have written
// them or not, and the answered rows are settled too. Late answers are settled one by one.
func (cl *Claim) Done(committed bool) (out Out) {
	c := cl.core
	c.lock()
	defer c.mu.Unlock()
	cl.found(nil)
	for _, row := range cl.Rows {
		c.notLocked(row)
	}
	locked := make(map[string]bool)
	for _, m := range cl.unsent {
		c.releaseClaimed(m)
		if m.OrderingKey != nil {
			locked[*m.OrderingKey] = true
		}
	}
	flying := make(map[string]*outbox.Message)
	for _, late := range cl.postponed {
		m := cl.flying[late.Ref()]
		c.mu.registry.leaveClaim(late.Ref())
		if committed {
			m.AvailableAt = late.AvailableAt // a later answer settles the row only while it has this time
		}
		if m.OrderingKey != nil {
			flying[*m.OrderingKey] = m
		}
	}
	deleted := make(map[string]int)
	for _, s := range cl.answered {
		key := s.Message.OrderingKey
		if key != nil {
			locked[*key] = true
		}
		switch {
		case s.Decision.Action == outbox.Release:
			c.releaseClaimed(s.Message)
		case committed:
			c.settle(s)
			if key != nil && s.Decision.Action == outbox.Delete {
				deleted[*key]++
			}
		default:
			out.Settle = append(out.Settle, s)
		}
	}
	for _, key := range cl.keys {
		c.endKey(key, flying[key], deleted[key], locked[key])
	}
	for _, a := range cl.kept {
		out.Settle = append(out.Settle, c.resolved(a).Settle...) // no message is queued behind one of a claim
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
	c.Wake.Send()
}

// releaseClaimed forgets a claimed row that stays unchanged in the table.
func (c *Core) releaseClaimed(m *outbox.Message) {
	c.forget(m.Ref(), m.Size())
	if m.OrderingKey == nil {
		c.missed(candidate(m))
	}
}

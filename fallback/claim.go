package fallback

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Transaction locks the rows of a claim. The caller ends it with Commit or Abandon.
type Transaction interface {
	// Locked returns the messages, the WAL position after the lock, and the server process that owned the slot then.
	Locked() (messages []*outbox.Message, position uint64, owner uint32)
	// Read reads the body of a large row, which the lock has left out. It takes as long as the body needs.
	Read(ctx context.Context) error
	// Alive is an error if the server has ended the transaction.
	Alive(ctx context.Context) error
	// Commit writes the decisions for the rows and ends the transaction. Rows without an answer are postponed.
	Commit(ctx context.Context, rows []outbox.Settlement, postpone time.Duration) error
	// Abandon ends the transaction and writes nothing.
	Abandon()
}

const (
	// mostClaims is how many claims may be open: while one writes, the others publish.
	mostClaims = 3
	// answerWait is how long a claim waits for the next answer, up to mostAnswerWait if the first answer was slow.
	answerWait, mostAnswerWait = 100 * time.Millisecond, time.Second
	// mostRunning is how long a claim starts new messages, mostOpen how long it stays open. Both must stay well below
	// store.IdleTimeout, after which the server ends the transaction.
	mostRunning, mostOpen = 2 * time.Second, 4 * time.Second
	// publishFor is how long a claim publishes after its transaction was certainly alive, also in a process that was
	// paused.
	publishFor = 5 * time.Second
)

// claims counts the open claims, and the rows that all claims have locked so far.
type claims struct {
	open    atomic.Int32
	running sync.WaitGroup
	locked  int // only the goroutine of Once uses it
	// quick: a large row was read in a short time.
	quick atomic.Bool
}

func (c *claims) free() int { return mostClaims - int(c.open.Load()) }

// Claiming reports whether claims are open.
func (s *Sweeper) Claiming() bool { return s.claims.open.Load() > 0 }

// Claimed counts the rows locked so far. Only the goroutine of Once may call it.
func (s *Sweeper) Claimed() int { return s.claims.locked }

// Wait returns when all claims have ended.
func (s *Sweeper) Wait() { s.claims.running.Wait() }

// Claim is a set of rows that one transaction locks. Its way: the core chooses rows, the transaction locks them, the
// messages leave, the transaction writes the answers, and the core takes the rows back. The goroutine of Once owns it
// until Start, then the goroutine of Finish. The core calls Answered.
type Claim struct {
	sweeper *Sweeper
	tx      Transaction
	rows    []outbox.Candidate
	keys    []string
	alive   time.Time // when the transaction was certainly alive
	// large is a row whose body Finish reads, because the other sweeps must not wait for it.
	large *outbox.Message
	// progress is signalled at each answer.
	progress chan struct{}

	mu struct {
		sync.Mutex
		// runs are the messages of each key that have not left yet.
		runs map[string][]*outbox.Message
		// flying are the messages that are published and unanswered.
		flying map[outbox.Ref]*outbox.Message
		// answered are the decisions for answered messages; unsent are locked rows that do not leave.
		answered []outbox.Settlement
		unsent   []*outbox.Message
		// ended: the claim waits for no more answers.
		ended bool
	}
}

func (s *Sweeper) newClaim() *Claim {
	c := &Claim{sweeper: s, alive: s.Clock(), progress: make(chan struct{}, 1)}
	c.mu.runs, c.mu.flying = make(map[string][]*outbox.Message), make(map[outbox.Ref]*outbox.Message)
	return c
}

// claim locks the chosen rows and publishes them. Finish then runs in another goroutine.
func (s *Sweeper) claim(ctx context.Context, r role, c *Claim, chosen core.Chosen) error {
	if c.rows, c.keys = chosen.Rows, chosen.Keys; len(c.rows) == 0 {
		if len(c.keys) > 0 {
			c.done(core.Ended{})
		}
		return nil
	}
	ids := make([]int64, len(c.rows))
	for i, row := range c.rows {
		ids[i] = row.ID
	}
	tx, err := s.lock(ctx, r, c, ids, chosen.Large)
	if err != nil {
		c.done(core.Ended{NotLocked: c.rows})
		return err
	}
	messages, position, owner := tx.Locked()
	owned := r.owner == nil || owner == *r.owner
	lock := core.Lock{Messages: messages, Position: position, Epoch: r.view.Epoch, Owned: owned}
	valid := s.Core.Locked(c, c.rows, lock)
	if !owned && !r.view.Leader {
		_ = s.CheckSlot(ctx) // the next claim or check reports an error
	}
	if len(messages) == 0 {
		tx.Abandon()
		c.done(core.Ended{})
		return nil
	}
	s.claims.open.Add(1)
	s.claims.running.Add(1)
	s.claims.locked += len(messages)
	if c.tx = tx; chosen.Large && valid && !messages[0].Superseded {
		c.large = messages[0]
	} else {
		s.Apply(core.Out{Publish: c.start(messages, valid)})
	}
	s.Start(ctx, c)
	return nil
}

// start returns the locked messages that leave at once: those without a key, and the first of each key.
func (c *Claim) start(messages []*outbox.Message, valid bool) (now []*outbox.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	valid = valid && c.inTime()
	got := make(map[outbox.Ref]*outbox.Message, len(messages))
	for _, m := range messages {
		got[m.Ref()] = m
	}
	ended := make(map[string]bool) // keys whose later rows do not leave
	for _, row := range c.rows {
		m := got[row.Ref]
		if m == nil || !sameKey(m.OrderingKey, row.OrderingKey) { // its new key may have other rows
			if row.OrderingKey != nil {
				ended[*row.OrderingKey] = true
			}
			if m != nil {
				c.mu.unsent = append(c.mu.unsent, m)
			}
			continue
		}
		superseded := valid && m.Superseded
		if m.OrderingKey != nil && (superseded || row.Superseded) {
			ended[*m.OrderingKey] = true // its successor leaves after the commit, or the two could change places
		}
		switch {
		case superseded:
			c.mu.answered = append(c.mu.answered, outbox.Settlement{
				Message: m, Decision: outbox.Decision{Action: outbox.Delete, Reason: outbox.ReasonCoalesced},
			})
		case !valid || (m.OrderingKey != nil && ended[*m.OrderingKey]):
			c.mu.unsent = append(c.mu.unsent, m)
		case m.OrderingKey == nil:
			now = append(now, c.fly(m))
		default:
			c.mu.runs[*m.OrderingKey] = append(c.mu.runs[*m.OrderingKey], m)
		}
	}
	for _, key := range c.keys {
		if m := c.follow(key, valid); m != nil {
			now = append(now, m)
		}
	}
	return now
}

func sameKey(a, b *string) bool { return a == b || a != nil && b != nil && *a == *b }

func (c *Claim) inTime() bool { return outbox.Elapsed(c.alive, c.sweeper.Clock()) <= publishFor }

func (c *Claim) fly(m *outbox.Message) *outbox.Message {
	m.TakenAt = c.sweeper.Clock()
	c.mu.flying[m.Ref()] = m
	return m
}

// follow returns the next message of a key, or nil.
func (c *Claim) follow(key string, publishing bool) *outbox.Message {
	run := c.mu.runs[key]
	if len(run) == 0 {
		return nil
	}
	if !publishing || !c.inTime() {
		c.endRun(key)
		return nil
	}
	c.mu.runs[key] = run[1:]
	return c.fly(run[0])
}

func (c *Claim) endRun(key string) {
	c.mu.unsent = append(c.mu.unsent, c.mu.runs[key]...)
	c.mu.runs[key] = nil
}

// Answered implements core.Claim.
func (c *Claim) Answered(s outbox.Settlement, publishing bool) (next *outbox.Message, taken bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.ended {
		return nil, false
	}
	m := s.Message
	delete(c.mu.flying, m.Ref())
	c.mu.answered = append(c.mu.answered, s)
	select {
	case c.progress <- struct{}{}:
	default:
	}
	switch {
	case m.OrderingKey == nil:
	case s.Decision.Action == outbox.Delete || s.Decision.KeyGoesOn:
		next = c.follow(*m.OrderingKey, publishing)
	default:
		c.endRun(*m.OrderingKey)
	}
	return next, true
}

// flying counts the unanswered messages.
func (c *Claim) flying() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.mu.flying)
}

// cut ends the runs: no more messages leave.
func (c *Claim) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endRuns()
}

func (c *Claim) endRuns() {
	for _, key := range c.keys {
		c.endRun(key)
	}
}

// end ends the claim, and returns what to write. Later answers are settled one by one.
func (c *Claim) end() (rows []outbox.Settlement) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.ended = true
	c.endRuns()
	rows = slices.Clone(c.mu.answered)
	for _, m := range c.mu.unsent {
		rows = append(rows, outbox.Settlement{Message: m, Decision: outbox.Decision{Action: outbox.Release}})
	}
	for ref := range c.mu.flying { // a copy: the publisher still uses the message itself
		late := &outbox.Message{Row: outbox.Row{ID: ref.ID, MessageID: ref.MessageID}}
		rows = append(rows, outbox.Settlement{Message: late, Decision: outbox.Decision{Action: outbox.Postpone}})
	}
	return rows
}

// written returns the end of the claim after these rows were written, or not.
func (c *Claim) written(rows []outbox.Settlement, committed bool) core.Ended {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := core.Ended{Committed: committed, Answered: c.mu.answered, Unsent: c.mu.unsent}
	for _, s := range rows {
		if s.Decision.Action == outbox.Postpone {
			e.Late = append(e.Late, core.Late{Message: c.mu.flying[s.Message.Ref()], Until: s.Message.AvailableAt})
		}
	}
	return e
}

// done returns all rows to the core.
func (c *Claim) done(e core.Ended) {
	e.Keys = c.keys
	c.sweeper.Apply(c.sweeper.Core.Done(e))
}

// noticeRestart marks all existing rows after a restart of the server: a crash can lose the traces of claims.
func (s *Sweeper) noticeRestart(ctx context.Context) error {
	restarts := s.Table.Restarts()
	if restarts == s.restarts {
		return nil
	}
	last, ok, err := s.Table.LastID(ctx)
	if err != nil {
		return err
	}
	if !ok {
		last = math.MaxInt64
	}
	s.Core.ServerRestarted(last)
	s.restarts = restarts
	return nil
}

// Finish waits for the answers, writes them, and ends the claim. Ctx ends only the reading of a large row.
func (c *Claim) Finish(ctx context.Context) {
	if c.large != nil && !c.read(ctx) {
		return
	}
	c.await()
	rows := c.end()
	began := time.Now()
	err := c.tx.Commit(context.WithoutCancel(ctx), rows, c.sweeper.SendTimeout)
	if err == nil {
		c.sweeper.Committed(rows, time.Since(began))
	} else {
		c.sweeper.Failed(err)
	}
	c.finish(c.written(rows, err == nil))
}

func (c *Claim) finish(e core.Ended) {
	c.done(e)
	c.sweeper.claims.open.Add(-1)
	c.sweeper.claims.running.Done()
}

// await returns when all messages have an answer, or when the missing answers are so late that the others must not
// wait.
func (c *Claim) await() {
	began := time.Now()
	left := mostOpen // until the first answer
	timer := time.NewTimer(left)
	defer timer.Stop()
	for answered := false; c.flying() > 0; {
		timer.Reset(min(left, mostOpen-time.Since(began)))
		select {
		case <-c.progress:
		case <-timer.C:
			select {
			case <-c.progress: // it came while this goroutine did not run
			default:
				return
			}
		}
		if !answered {
			answered = true
			left = min(max(answerWait, 4*time.Since(began)), mostAnswerWait)
		}
		if time.Since(began) > mostRunning {
			c.cut()
		}
	}
}

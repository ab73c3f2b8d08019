package soak

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

// row is one message that a transaction will insert.
type row struct {
	history.Message
	exchange   *string
	routingKey string
	headers    string // JSON, or empty
	properties string // JSON, or empty
	body       []byte
	delay      time.Duration // of a scheduled row
}

// step is one statement of a transaction: it inserts rows, or is SQL.
type step struct {
	from, to int  // the rows: from ≤ i < to
	copied   bool // by COPY
	sql      string
	fails    bool // the server rejects it, which ends the transaction or the part after the savepoint
}

// transaction is everything that one transaction will do. Its id is that of its business row.
type transaction struct {
	id    int64
	rows  []row
	steps []step
	end   string // COMMIT or ROLLBACK
}

// orderingKey is a key that one writer owns.
type orderingKey struct {
	name       string
	generation int
	seq        int
}

// planner chooses transactions from its own stream of random numbers: the choices depend on the seed, not on the
// outcome of the transactions. It is not safe for concurrent use.
type planner struct {
	random *rand.Rand
	writer int
	drawn  int64
	keys   []orderingKey
}

// keysPerWriter is how many ordering keys each writer has at a time.
const keysPerWriter = 16

func newPlanner(seed uint64, writer int) *planner {
	p := &planner{
		random: rand.New(rand.NewPCG(seed, uint64(writer)+1)), writer: writer, keys: make([]orderingKey, keysPerWriter),
	}
	for i := range p.keys {
		p.renew(i)
	}
	return p
}

// renew replaces a key by a new one with its own order.
func (p *planner) renew(i int) {
	g := p.keys[i].generation + 1
	p.keys[i] = orderingKey{name: fmt.Sprintf("w%d-k%d-%d", p.writer, i, g), generation: g}
}

// abandon renews the keys of a transaction with an unknown outcome: it may still commit after later transactions of
// this writer, and the order of overlapping transactions is undefined.
func (p *planner) abandon(t *transaction) {
	used := make(map[string]bool)
	for i := range t.rows {
		used[t.rows[i].Key] = true
	}
	for i := range p.keys {
		if used[p.keys[i].name] {
			p.renew(i)
		}
	}
}

// next draws a transaction.
func (p *planner) next() *transaction {
	t := &transaction{id: p.drawn*writers + int64(p.writer) + 1}
	p.drawn++
	keyed := p.chance(400)
	switch p.weighted(380, 200, 200, 200, 20) {
	case 0:
		p.single(t, keyed)
	case 1:
		for range p.between(2, 6) {
			p.single(t, keyed)
		}
	case 2:
		p.together(t, false, p.between(2, 20), keyed)
	case 3:
		p.withSavepoints(t, keyed)
	case 4:
		p.together(t, true, p.between(50, 500), keyed)
	}
	switch t.end = "COMMIT"; p.weighted(860, 70, 40, 30) {
	case 1: // the application decides to roll back
		t.end = "ROLLBACK"
	case 2: // a statement fails, and the application rolls back
		p.fail(t)
		t.end = "ROLLBACK"
	case 3: // a statement fails, but the application sends COMMIT: the server rolls back
		p.fail(t)
	}
	return t
}

func (p *planner) single(t *transaction, keyed bool) {
	p.add(t, p.kind(), keyed)
	t.steps = append(t.steps, step{from: len(t.rows) - 1, to: len(t.rows)})
}

func (p *planner) together(t *transaction, copied bool, rows int, keyed bool) {
	from := len(t.rows)
	for range rows {
		kind := p.kind()
		if copied && kind != history.Binary {
			kind = history.Plain // COPY accepts no expressions, which scheduled rows need
		}
		p.add(t, kind, keyed)
	}
	t.steps = append(t.steps, step{from: from, to: len(t.rows), copied: copied})
}

// withSavepoints adds rows before, after and between savepoints, some of which are rolled back.
func (p *planner) withSavepoints(t *transaction, keyed bool) {
	p.single(t, keyed)
	for i := range p.between(1, 3) {
		p.behindSavepoint(t, fmt.Sprintf("s%d", i), keyed, p.chance(300))
	}
	p.single(t, keyed)
}

func (p *planner) behindSavepoint(t *transaction, name string, keyed, nested bool) {
	t.steps = append(t.steps, step{sql: "SAVEPOINT " + name})
	from := len(t.rows)
	for range p.between(1, 3) {
		p.single(t, keyed)
	}
	if nested {
		p.behindSavepoint(t, name+"_inner", keyed, false)
	}
	if p.chance(500) {
		t.steps = append(t.steps, step{sql: "RELEASE SAVEPOINT " + name})
		return
	}
	if p.chance(500) {
		p.fail(t)
	}
	t.steps = append(t.steps, step{sql: "ROLLBACK TO SAVEPOINT " + name})
	for i := range t.rows[from:] {
		t.rows[from+i].Discarded = true
	}
}

// fail adds a statement that the server rejects: a mistake of the application, caught by the server, the business table
// or the outbox.
func (p *planner) fail(t *transaction) {
	mistakes := []string{
		"SELECT 1 / 0", fmt.Sprintf("INSERT INTO soak_transaction VALUES (%d)", t.id),
		"INSERT INTO " + outboxTable + " (payload) VALUES ('{}')",
	}
	t.steps = append(t.steps, step{sql: mistakes[p.random.IntN(len(mistakes))], fails: true})
}

func (p *planner) kind() history.Kind {
	kinds := []history.Kind{
		history.Plain, history.Binary, history.Scheduled, history.Large, history.Unroutable, history.Impossible,
	}
	return kinds[p.weighted(830, 100, 50, 2, 12, 6)]
}

// add draws a row of a kind. With keyed, it has a key of this writer unless it is scheduled.
func (p *planner) add(t *transaction, kind history.Kind, keyed bool) {
	r := row{Message: history.Message{ID: p.uuid(), Kind: kind}}
	if kind == history.Scheduled {
		r.delay = time.Duration(p.between(500, 2500)) * time.Millisecond
	}
	key, plain := &p.keys[p.random.IntN(len(p.keys))], p.random.IntN(plainQueues)
	queue := plainQueue(plain)
	// A message that is retried blocks its key. That should happen, but not on every key all the time.
	held := kind == history.Scheduled || kind == history.Unroutable && !p.chance(100)
	if keyed && !held {
		key.seq++
		r.Key, r.Seq = key.name, key.seq
		queue = queueOf(key.name)
	}
	p.address(&r, queue)
	p.fill(&r)
	t.rows = append(t.rows, r)
}

func (p *planner) uuid() outbox.UUID {
	var u outbox.UUID
	binary.BigEndian.PutUint64(u[:8], p.random.Uint64())
	binary.BigEndian.PutUint64(u[8:], p.random.Uint64())
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80
	return u
}

// between draws a number from least to most, inclusive.
func (p *planner) between(least, most int) int { return least + p.random.IntN(most-least+1) }

// chance is true in perMille of 1000 cases.
func (p *planner) chance(perMille int) bool { return p.random.IntN(1000) < perMille }

// weighted draws an index with a probability proportional to its weight.
func (p *planner) weighted(weights ...int) int {
	sum := 0
	for _, w := range weights {
		sum += w
	}
	n := p.random.IntN(sum)
	for i, w := range weights {
		if n < w {
			return i
		}
		n -= w
	}
	return len(weights) - 1
}

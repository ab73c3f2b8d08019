package relay

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
)

// model is the world around a core: a database with its WAL, a broker, and a relay
// process that may crash. It plays what the stream, the sweeper, the publisher and
// the settler do with the core, one step at a time and in any order, and checks
// after each that the promises of docs/contract.md hold.
type model struct {
	t   *rapid.T
	now time.Time
	// clock is the process's own, which shows it that it stood still.
	clock time.Time
	// replaced: another relay has had the slot since this process stood still.
	replaced bool
	// scheduledOfTen is how many rows of ten have a time of their own.
	scheduledOfTen int

	// the database
	rows    []*modelRow
	txs     []*modelTx // in commit order: the WAL
	dead    map[int64]bool
	lastXID uint32
	wal     uint64 // where it ends

	// the broker
	delivered map[int64]int
	firsts    map[string][]int64 // per key, the ids in the order of their first delivery

	// the relay process, lost in a crash
	core                *core
	streamed            int // how many transactions the stream has brought, or left out by starting after them
	inFlight            []*outbox.Message
	pending             []store.Settlement
	hidden              []store.Settlement // published, not visible yet
	unheard             *modelWritten      // committed, and the core does not know yet
	sweeping            *modelSweep
	most                bounds
	leftPass, spillPass pass[int64]
	keyPass             pass[string]
}

type modelTx struct {
	xid     uint32
	lsn     uint64
	rows    []*modelRow
	visible bool
	// scheduled is available_at of the rows as the transaction has inserted them.
	scheduled map[int64]time.Time
	// marked tells which came with possible_duplicate.
	marked map[int64]bool
}

type modelRow struct {
	id        int64
	key       string // "": none
	tx        *modelTx
	available time.Time // as it is now; zero: null
	attempts  int
	duplicate bool
	gone      bool
	requeued  bool  // it was dead, and came back in its old place
	returned  bool  // … and was delivered since
	lessee    *core // who has set available to a lease; nil: it is another time
}

const (
	modelInFlight   = 8
	modelPage       = 4
	modelMaxRetries = 2
	modelLease      = time.Minute
	modelBackoff    = time.Second
)

func newModel(t *rapid.T) *model {
	m := &model{
		t: t, now: time.Unix(1_000_000, 0), dead: map[int64]bool{}, lastXID: 100, wal: 1,
		delivered: map[int64]int{}, firsts: map[string][]int64{}, most: defaultBounds(),
	}
	if rapid.Bool().Draw(t, "tight bounds") {
		m.most = bounds{awaitingStream: 2, keys: 3, left: 1, unknown: 1, invisible: 2}
	}
	m.scheduledOfTen = 1
	if rapid.Bool().Draw(t, "mostly scheduled") {
		m.scheduledOfTen = 8
	}
	m.boot()
	return m
}

// boot starts a relay process that takes the slot at once.
func (m *model) boot() {
	counts, err := newMetrics(prometheus.NewRegistry(), func() float64 { return 0 }, func() float64 { return 0 })
	if err != nil {
		m.t.Fatal(err)
	}
	m.core = newCore(modelInFlight, m.most, counts)
	m.core.clock = func() time.Time { return m.clock }
	m.inFlight, m.pending, m.hidden, m.unheard, m.sweeping = nil, nil, nil, nil, nil
	m.leftPass, m.spillPass, m.keyPass = pass[int64]{}, pass[int64]{}, pass[string]{}
	m.core.publisherReady(true)
	m.takeSlot()
}

// freeze stops the process in its tracks for a while. Where the server noticed, another
// relay takes the slot, publishes rows and goes again: some of them may be left.
func (m *model) freeze(replaced bool, some func() bool) {
	m.clock = m.clock.Add(2 * stillAfter)
	if m.replaced = m.replaced || replaced; !replaced {
		return
	}
	for _, row := range m.visible() {
		if !row.available.IsZero() || (row.key != "" && !m.firstOfItsKey(row)) || !some() {
			continue
		}
		m.arrive(row.message(nil))
		row.gone = some()
	}
}

// askForSlot is what the streamer does in doubt.
func (m *model) askForSlot() {
	switch {
	case !m.core.inDoubt():
	case m.replaced:
		m.core.lostSlot()
		m.takeSlot()
	default:
		m.core.reassured()
	}
}

// takeSlot starts the stream at the present.
func (m *model) takeSlot() {
	m.replaced = false
	m.streamed = len(m.txs)
	m.core.tookSlot(holding{boundary: int64(len(m.rows)), pid: 1, start: m.wal, walEnd: m.wal})
	m.core.streamLive(true)
}

// failOver goes on with a server that has all rows, and whose WAL is behind what the one before has written.
func (m *model) failOver() {
	m.end() // no query outlives its server
	m.wal = 1 + m.wal/2
	m.core.lostSlot()
	m.takeSlot()
}

// commit writes the end of a transaction.
func (m *model) commit(tx *modelTx) {
	m.lastXID++
	tx.xid, tx.lsn = m.lastXID, m.wal+10
	m.wal += 15
	m.txs = append(m.txs, tx)
}

// snapshot is what a query begun now can see.
func (m *model) snapshot() store.Snapshot {
	xmin := uint64(m.lastXID) + 1
	var running []string
	for _, tx := range m.txs {
		if !tx.visible {
			running = append(running, fmt.Sprint(tx.xid))
			xmin = min(xmin, uint64(tx.xid))
		}
	}
	s, err := store.ParseSnapshot(fmt.Sprintf("%d:%d:%s", xmin, m.lastXID+1, strings.Join(running, ",")))
	if err != nil {
		m.t.Fatal(err)
	}
	return s
}

// insert commits a transaction. Its rows are in the WAL at once, and visible later.
// Transactions of one key do not overlap: what was inserted before is visible.
func (m *model) insert(keys []string, scheduled []bool) {
	tx := &modelTx{scheduled: map[int64]time.Time{}}
	for i, key := range keys {
		row := &modelRow{id: int64(len(m.rows) + 1), key: key, tx: tx}
		if scheduled[i] {
			row.available = m.now.Add(2 * time.Second)
			tx.scheduled[row.id] = row.available
		}
		m.rows = append(m.rows, row)
		tx.rows = append(tx.rows, row)
	}
	m.commit(tx)
}

// busy tells whether a transaction with a row of the key is not visible yet.
func (m *model) busy(key string) bool {
	for _, tx := range m.txs {
		if !tx.visible && slices.ContainsFunc(tx.rows, func(r *modelRow) bool { return r.key == key }) {
			return true
		}
	}
	return false
}

// message is the row as a query reads it, or as the transaction has brought it to the stream.
func (r *modelRow) message(streamed *modelTx) *outbox.Message {
	m := &outbox.Message{
		ID: r.id, MessageID: outbox.UUID{byte(r.id), byte(r.id >> 8)}, SchemaVersion: 1,
		AvailableAt: r.available, Attempts: r.attempts, PossibleDuplicate: r.duplicate,
	}
	if r.key != "" {
		m.OrderingKey = &r.key
	}
	if streamed != nil {
		m.XID, m.AvailableAt, m.Attempts, m.PossibleDuplicate = streamed.xid, streamed.scheduled[r.id], 0, streamed.marked[r.id]
	}
	return m
}

// streamNext brings one transaction, row by row, and the position after it.
func (m *model) streamNext() {
	if m.streamed >= len(m.txs) {
		m.core.passed(m.wal) // a keepalive
		return
	}
	tx := m.txs[m.streamed]
	m.streamed++
	m.core.began(tx.xid)
	for _, row := range tx.rows {
		next, v := m.core.streamed(row.message(tx), tx.lsn, false)
		if v == noRoom {
			m.t.Fatal("noRoom for an impatient stream")
		}
		m.publish(next)
	}
	m.core.passed(tx.lsn + 5)
}

func (m *model) publish(messages ...*outbox.Message) {
	for _, message := range messages {
		if message == nil {
			continue
		}
		for _, other := range m.inFlight {
			if other.ID == message.ID {
				m.t.Fatalf("row %d is in flight twice", message.ID)
			}
			if message.OrderingKey != nil && other.OrderingKey != nil && *other.OrderingKey == *message.OrderingKey {
				m.t.Fatalf("rows %d and %d of key %s are in flight together", other.ID, message.ID, *message.OrderingKey)
			}
		}
		if !message.AvailableAt.IsZero() && m.now.After(message.AvailableAt) && !message.PossibleDuplicate {
			m.t.Fatalf("row %d is published after its lease, unmarked", message.ID)
		}
		if m.delivered[message.ID] > 0 && !message.PossibleDuplicate {
			m.t.Fatalf("row %d is published again, unmarked", message.ID)
		}
		m.inFlight = append(m.inFlight, message)
	}
	if n := len(m.inFlight); n > modelInFlight {
		m.t.Fatalf("%d messages in flight", n)
	}
}

// arrive is the broker taking a message over.
func (m *model) arrive(message *outbox.Message) {
	m.keepBatch(message)
	// What came back from the dead letters comes after what has left meanwhile.
	if m.delivered[message.ID]++; m.delivered[message.ID] > 1 || message.OrderingKey == nil || m.rows[message.ID-1].requeued {
		return
	}
	key := *message.OrderingKey
	if firsts := m.firsts[key]; len(firsts) > 0 && firsts[len(firsts)-1] > message.ID {
		m.t.Fatalf("key %s: row %d was delivered after row %d", key, message.ID, firsts[len(firsts)-1])
	}
	for _, row := range m.rows[:message.ID-1] {
		if row.key == key && m.delivered[row.id] == 0 && !m.dead[row.id] && !row.requeued {
			m.t.Fatalf("key %s: row %d was delivered before row %d", key, message.ID, row.id)
		}
	}
	m.firsts[key] = append(m.firsts[key], message.ID)
}

// resolve ends one flight.
func (m *model) resolve(i int, outcome outbox.Outcome, took bool) {
	message := m.inFlight[i]
	m.inFlight = slices.Delete(m.inFlight, i, i+1)
	if outcome == outbox.Confirmed || (outcome == outbox.Unknown && took) {
		m.arrive(message)
	}
	result := outbox.Result{Message: message, Outcome: outcome, Reason: outbox.ReasonNack}
	policy := store.Policy{MaxRetries: modelMaxRetries, BackoffTime: modelBackoff, MaxBackoff: time.Hour}
	settlement, write, next := m.core.resolved(result, store.Decide(result, policy, 0))
	if write {
		m.pending = append(m.pending, settlement)
	}
	m.publish(next)
}

// modelWritten is what came of a batch of the settler.
type modelWritten struct{ done, gone, hidden []store.Settlement }

// settle writes what is pending, as the settler and its statements do.
func (m *model) settle() {
	m.commitSettled()
	m.hearSettled()
}

// commitSettled runs the statements.
func (m *model) commitSettled() {
	if m.unheard != nil {
		return
	}
	m.core.turnedVisible(m.hidden)
	batch := append(append(m.pending, m.core.takeGivenUp()...), m.hidden...)
	m.pending, m.hidden, m.unheard = nil, nil, &modelWritten{}
	for _, s := range batch {
		row := m.rows[s.Message.ID-1]
		if !row.tx.visible {
			m.unheard.hidden = append(m.unheard.hidden, s)
			continue
		}
		if s.Decision.Action == store.DeadLetter && (row.gone || !row.available.Equal(s.Message.AvailableAt)) {
			m.unheard.gone = append(m.unheard.gone, s)
		} else {
			m.unheard.done = append(m.unheard.done, s)
		}
		m.write(row, s)
	}
}

// hearSettled brings their answers to the core.
func (m *model) hearSettled() {
	if written := m.unheard; written != nil {
		m.unheard, m.hidden = nil, written.hidden
		m.publish(m.core.written(written.done, written.gone, false)...)
		m.core.turnedInvisible(m.hidden)
	}
}

func (m *model) write(row *modelRow, s store.Settlement) {
	switch {
	case row.gone:
	case s.Decision.Action == store.Delete:
		if m.delivered[row.id] == 0 {
			m.t.Fatalf("row %d is deleted and was not delivered", row.id)
		}
		row.gone = true
	case !row.available.Equal(s.Message.AvailableAt): // the fence
	case s.Decision.Action == store.Retry:
		row.lessee = nil
		row.attempts++
		row.available, row.duplicate = m.now.Add(s.Decision.Delay), s.Message.PossibleDuplicate
	case s.Decision.Action == store.DeadLetter:
		row.gone, m.dead[row.id], row.duplicate = true, true, s.Message.PossibleDuplicate
	case s.Decision.Action == store.Release && !row.available.IsZero():
		row.lessee = nil
		row.available, row.duplicate = m.now, s.Message.PossibleDuplicate
	}
}

// pass lets time go by while the process runs.
func (m *model) pass(d time.Duration) {
	for step := stillAfter / 2; d > 0; d -= step {
		m.now, m.clock = m.now.Add(min(d, step)), m.clock.Add(min(d, step))
		m.core.isHolder()
	}
}

// crash loses the process. What was sent may have arrived.
func (m *model) crash(arrived []bool) {
	for i, message := range m.inFlight {
		if arrived[i%len(arrived)] {
			m.arrive(message)
		}
	}
	m.boot()
}

package fallback

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/internal/pgsnapshot"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// model is a relay process, which may crash, in its world. It plays the stream, the publisher, the settler and the
// sweeps of its core one step at a time, in any order. After each step it checks the promises of docs/delivery.md.
type model struct {
	*world
	// taken is when it took the lock. In the term, begun is the boundary of older rows, which wait until restUntil.
	taken, restUntil time.Time
	begun            int64
	// late: its proofs of the lock come late.
	late bool
	// polls: there is no stream.
	polls bool
	// between takes other steps during a statement; failing reports whether the statement fails.
	between func()
	failing func() bool
	// reading: the statement reads rows that leave then.
	reading bool

	// these are lost in a crash
	core     *core.Core
	sweeper  *Sweeper
	streamed int   // transactions that the stream has brought or skipped
	server   int64 // from which it streams
	inFlight []*outbox.Message
	tooLate  map[*outbox.Message]bool // messages that had expired when they were to be sent
	arrived  []*outbox.Message        // of the messages in flight
	pending  []outbox.Settlement
	hidden   []outbox.Settlement // published, not visible yet
	unheard  *modelWritten       // committed, but the core does not know yet
	body     *outbox.Message     // whose body is being read
	sweeping bool
}

// world is what relays share: a database with WAL and row locks, and a broker.
type world struct {
	t   interface{ Fatalf(string, ...any) }
	now time.Time
	// say tells a step of a story.
	say    func(format string, args ...any)
	relays []*model
	// acting is the relay of which a story of several relays speaks.
	acting *model
	// holder is the relay whose session has the lock of the table; nil: none. Word is older of a leader that has ended
	// well; nil: none.
	holder *model
	word   *int64
	// scheduledOfTen is how many of ten rows have a time.
	scheduledOfTen int
	// expiring: rows have expires_at; drops: expired rows are deleted.
	expiring, drops bool
	// coalescing: of waiting rows with the same coalesce key and ordering key, only the newest leaves.
	coalescing bool
	limits     core.Limits
	// marksExactly: no event so far justifies a mark.
	marksExactly bool

	// the database
	rows    []*modelRow
	txs     []*modelTx // in commit order: the WAL
	dead    map[int64]bool
	expired map[int64]bool // deleted or dead because they had expired
	// coalesced were deleted because a newer row waited. lost vanished in a failover.
	coalesced, lost map[int64]bool
	lastXID         uint32
	wal             uint64 // its end
	seen            uint64 // sweeps have seen rows up to this position of it
	restarts        int64

	// the broker
	onTheirWay []*outbox.Message // of dead relays
	delivered  map[int64]int
	firsts     map[string][]int64 // for each key, the ids in the order of first delivery
}

type modelTx struct {
	xid     uint32
	lsn     uint64
	server  int64
	rows    []*modelRow
	visible bool
	// scheduled is the available_at with which the rows were inserted.
	scheduled map[int64]time.Time
	// marked rows were inserted with possible_duplicate.
	marked map[int64]bool
}

type modelRow struct {
	id        int64
	key       string // "": none
	coalesce  string // "": none
	tx        *modelTx
	available time.Time // the current value; zero: null
	expires   time.Time // zero: null
	attempts  int
	duplicate bool
	gone      bool
	requeued  bool // it was dead and was requeued
	returned  bool // it was requeued and has been delivered since
	person    bool // another session locks it
}

func never() bool { return false }

const (
	modelInFlight   = 8
	modelPage       = 4
	modelMaxRetries = 2
	modelBackoff    = time.Second
	modelTimeout    = 10 * time.Second
)

func newModel(t *rapid.T) *model {
	m := emptyModel()
	m.t = t
	if rapid.Bool().Draw(t, "tight limits") {
		m.limits.Keys, m.limits.Unseen = 3, 2
	}
	m.scheduledOfTen = 1
	if rapid.Bool().Draw(t, "mostly scheduled") {
		m.scheduledOfTen = 8
	}
	m.expiring, m.drops = rapid.IntRange(1, 3).Draw(t, "expiring") == 1, rapid.Bool().Draw(t, "drops")
	m.coalescing = rapid.IntRange(1, 3).Draw(t, "coalescing") == 1
	m.polls = rapid.IntRange(1, 4).Draw(t, "polls") == 1
	m.boot()
	return m
}

func emptyModel() *model {
	w := &world{
		now: time.Unix(1_000_000, 0), dead: map[int64]bool{}, expired: map[int64]bool{},
		coalesced: map[int64]bool{}, lost: map[int64]bool{}, lastXID: 100, wal: 1, delivered: map[int64]int{},
		firsts: map[string][]int64{}, limits: core.DefaultLimits(modelInFlight), say: func(string, ...any) {},
	}
	return w.relay()
}

// relay adds a relay, which does not run yet.
func (w *world) relay() *model {
	m := &model{world: w, between: func() {}, failing: never}
	w.relays = append(w.relays, m)
	return m
}

// boot starts a relay process that leads at once.
func (m *model) boot() {
	m.launch()
	m.holder = nil
	m.takeLock()
	m.lead(m.now.Add(time.Duration(len(m.rows)%2)*time.Second - core.RestFor)) // others may have led before
}

func (m *model) launch() {
	m.core = core.New(m.limits, core.Policy{
		MaxRetries: modelMaxRetries, BackoffTime: modelBackoff, MaxBackoff: time.Minute, DropExpired: m.drops,
	})
	m.core.Clock, m.core.Random = func() time.Time { return m.now }, func() float64 { return 0 }
	m.inFlight, m.arrived, m.pending, m.hidden, m.unheard, m.body = nil, nil, nil, nil, nil, nil
	m.tooLate = map[*outbox.Message]bool{}
	m.sweeper = &Sweeper{
		Core: m.core, Table: m, Planner: NewPlanner(time.Second),
		Settings: Settings{Page: modelPage, UpTo: math.MaxInt64}, Apply: m.apply, Log: slog.New(slog.DiscardHandler),
		prove:    func(context.Context) { m.prove() },
		MostBody: func() int { return 0 },
	}
	m.core.PublisherReady(true)
}

// rest sweeps while a sweep is due and no time passes. Otherwise the relay would keep a core busy.
func (m *model) rest() {
	for n := 0; !m.sweeping; n++ {
		kind, _ := m.sweeper.Next()
		if m.prove(); kind == None || !m.core.Certain() {
			return
		}
		if n > 10*(len(m.rows)+10) {
			m.t.Fatalf("the sweep of %s never becomes idle: %+v", kind, m.sweeper.Role())
		}
		m.sweep(kind, func() {})
	}
}

func (m *model) takeLock() {
	if m.holder == nil {
		m.say("takes the lock")
		m.holder, m.taken = m, m.now
	}
}

// lead begins a term. Free is when the lock was free.
func (m *model) lead(free time.Time) {
	m.say("leads")
	m.begun, m.restUntil = int64(len(m.rows)), free.Add(core.RestFor)
	if m.word != nil {
		m.begun, m.restUntil, free, m.word = *m.word, m.now, time.Time{}, nil
	}
	m.core.BeginTerm(core.Lead{Older: m.begun, Server: m.restarts, Free: free})
	m.core.Owned(m.now)
	m.stream()
}

func (m *model) stream() {
	if m.streamed, m.server = len(m.txs), m.restarts; !m.polls {
		m.core.StreamBegan(m.wal, m.restarts)
		m.core.StreamLive(true)
	}
}

func (m *model) leads() bool { return m.holder == m && m.core.View().Leader }

// askForLock proves that this relay has the lock, or notices that it has lost it, or takes it.
func (m *model) askForLock() {
	switch leads := m.core.View().Leader; {
	case m.leads():
		m.core.Owned(m.now)
	case leads:
		m.core.EndTerm()
	case m.holder == m && m.now.Sub(m.taken) >= core.LateAfter:
		m.lead(m.taken)
	default:
		m.takeLock()
	}
}

// failOver replaces the server by one without the last transactions, and with a WAL and transaction ids that end
// earlier.
func (w *world) failOver(lost int) {
	kept := max(len(w.txs)-lost, 0)
	for _, tx := range w.txs[kept:] {
		for _, row := range tx.rows {
			row.gone, w.lost[row.id] = true, true
			delete(w.dead, row.id)
		}
	}
	w.lastXID -= uint32(len(w.txs) - kept)
	w.txs = w.txs[:kept]
	w.wal = 1 + w.wal/2
	w.seen = min(w.seen, w.wal)
	w.restart()
}

// restart ends all sessions. The server has another number then.
func (w *world) restart() {
	w.holder, w.word = nil, nil
	for _, r := range w.relays {
		r.streamed = min(r.streamed, len(w.txs))
	}
	for _, tx := range w.txs {
		tx.visible = true
	}
	w.restarts++
}

func (m *model) commit(tx *modelTx) {
	m.lastXID++
	tx.xid, tx.lsn, tx.server = m.lastXID, m.wal+10, m.restarts
	m.wal += 15
	m.txs = append(m.txs, tx)
}

// insert commits a transaction. Its rows are in the WAL at once, and visible later. Transactions of one key do not
// overlap: rows inserted before are visible.
func (m *model) insert(keys []string, scheduled []bool) {
	tx := &modelTx{scheduled: map[int64]time.Time{}}
	for i, key := range keys {
		row := &modelRow{id: int64(len(m.rows) + 1), key: key, tx: tx}
		if m.coalescing {
			row.coalesce = []string{"", "x", "x", "y", "x"}[len(m.rows)%5]
		}
		if scheduled[i] {
			row.available = m.now.Add(2 * time.Second)
			tx.scheduled[row.id] = row.available
		}
		if m.expiring && len(m.rows)%2 == 0 { // some expire before their time has come
			row.expires = m.now.Add(time.Duration(len(m.rows)%7) * 700 * time.Millisecond)
		}
		m.rows = append(m.rows, row)
		tx.rows = append(tx.rows, row)
	}
	m.commit(tx)
}

// busy reports whether a transaction with a row of the key is still invisible.
func (m *model) busy(key string) bool {
	for _, tx := range m.txs {
		if !tx.visible && slices.ContainsFunc(tx.rows, func(r *modelRow) bool { return r.key == key }) {
			return true
		}
	}
	return false
}

func (m *model) hasExpired(row *modelRow) bool {
	return !row.expires.IsZero() && !row.expires.After(m.now)
}

func (m *model) superseded(row *modelRow) bool {
	return row.coalesce != "" && slices.ContainsFunc(m.visible(), func(n *modelRow) bool {
		return n.coalesce == row.coalesce && n.key == row.key && n.id > row.id
	})
}

// deadline returns the local time for expires_at; both clocks run alike here.
func (m *model) deadline(row *modelRow) *time.Time {
	if row.expires.IsZero() {
		return nil
	}
	return pointer(row.expires)
}

// message returns the row as a query reads it, or as the stream brings it.
func (r *modelRow) message(streamed *modelTx) *outbox.Message {
	m := &outbox.Message{
		Row: outbox.Row{
			ID:            r.id,
			MessageID:     outbox.UUID{byte(r.id), byte(r.id >> 8)},
			SchemaVersion: 1,
			AvailableAt:   pointer(r.available),
			Attempts:      r.attempts,
		},
		PossibleDuplicate: r.duplicate,
	}
	if r.key != "" {
		m.OrderingKey = &r.key
	}
	if streamed != nil {
		m.XID, m.AvailableAt, m.Attempts, m.PossibleDuplicate = streamed.xid, pointer(streamed.scheduled[r.id]), 0, streamed.marked[r.id]
	}
	return m
}

// streamNext streams one transaction row by row, then the position after it.
func (m *model) streamNext() {
	if m.polls {
		m.streamed = len(m.txs)
		return
	}
	if m.streamed >= len(m.txs) || !m.core.View().Leader || m.txs[m.streamed].server > m.server {
		return
	}
	m.prove()
	tx := m.txs[m.streamed]
	m.streamed++
	for _, row := range tx.rows {
		message := row.message(tx)
		message.Deadline = m.deadline(row)
		before := m.core.View().Remembered
		out, v := m.core.Streamed(message, tx.lsn, false)
		if v == core.NoRoom {
			m.t.Fatalf("NoRoom for a stream that does not wait")
		}
		owned := m.leads() && !m.late
		if view := m.core.View(); v == core.Left && owned && view.Ready && view.InFlight == 0 && tx.lsn > m.seen {
			m.t.Fatalf("row %d stays in the table, and no sweep of this server can have seen it", row.id)
		}
		if len(out.Publish) == 0 {
			m.say(map[bool]string{
				true: "keeps row %d in memory, behind the first row of its key", false: "leaves row %d in the table",
			}[m.core.View().Remembered > before], row.id)
		}
		m.apply(out)
	}
}

// prove asks for the lock if the relay does not certainly lead. A late proof does not come.
func (m *model) prove() {
	if !m.late && !m.core.Certain() {
		m.askForLock()
	}
}

func (m *model) publish(message *outbox.Message) {
	for _, other := range m.inFlight {
		if other.ID == message.ID {
			m.t.Fatalf("row %d is in flight twice", message.ID)
		}
		if message.OrderingKey != nil && other.OrderingKey != nil && *other.OrderingKey == *message.OrderingKey {
			m.t.Fatalf("rows %d and %d of key %s are in flight together", other.ID, message.ID, *message.OrderingKey)
		}
	}
	if m.delivered[message.ID] > 0 && !message.PossibleDuplicate {
		m.t.Fatalf("row %d is published again, unmarked", message.ID)
	}
	if m.now.Before(m.restUntil) && m.isOlder(message) && message.TakenAt.Equal(m.now) {
		m.t.Fatalf("row %d is published while another relay may publish it", message.ID)
	}
	if m.marksExactly && message.PossibleDuplicate {
		m.t.Fatalf("row %d is marked, and nobody can have published it", message.ID)
	}
	if left, expires := message.TimeLeft(m.now); expires && left <= 0 {
		m.tooLate[message] = true
	}
	m.say("publishes row %d%s", message.ID, map[bool]string{true: " with the mark"}[message.PossibleDuplicate])
	m.inFlight = append(m.inFlight, message)
	if n := len(m.inFlight); n > modelInFlight {
		m.t.Fatalf("%d messages in flight", n)
	}
}

// isOlder reports whether a message that a sweep has read could leave before the term.
func (m *model) isOlder(message *outbox.Message) bool {
	return message.XID == 0 && message.ID <= m.begun
}

func (m *model) arrive(message *outbox.Message) {
	m.keepBatch(message)
	mark := message.PossibleDuplicate || !message.TakenAt.IsZero() && m.now.Sub(message.TakenAt) > core.RestFor
	if m.delivered[message.ID] > 0 && !mark {
		m.t.Fatalf("row %d is delivered again, unmarked", message.ID)
	}
	m.say("RabbitMQ has row %d%s", message.ID, map[bool]string{true: ", with the mark"}[mark])
	// A requeued dead letter follows the messages that left meanwhile.
	if m.delivered[message.ID]++; m.delivered[message.ID] > 1 || message.OrderingKey == nil || m.rows[message.ID-1].requeued {
		return
	}
	key := *message.OrderingKey
	if firsts := m.firsts[key]; len(firsts) > 0 && firsts[len(firsts)-1] > message.ID {
		m.t.Fatalf("key %s: row %d was delivered after row %d", key, message.ID, firsts[len(firsts)-1])
	}
	for _, row := range m.rows[:message.ID-1] {
		if row.key == key && m.delivered[row.id] == 0 && !m.dead[row.id] && !m.expired[row.id] && !m.coalesced[row.id] && !m.lost[row.id] && !row.requeued {
			m.t.Fatalf("key %s: row %d was delivered before row %d", key, message.ID, row.id)
		}
	}
	m.firsts[key] = append(m.firsts[key], message.ID)
}

func (m *model) resolve(i int, outcome outbox.Outcome, reason outbox.Reason, took bool) {
	message := m.inFlight[i]
	m.inFlight = slices.Delete(m.inFlight, i, i+1)
	if m.tooLate[message] { // nothing was sent
		delete(m.tooLate, message)
		m.expired[message.ID] = true
		outcome, reason, took = outbox.Impossible, outbox.ReasonExpired, false
	}
	there := slices.Index(m.arrived, message)
	switch {
	case there >= 0:
		m.arrived = slices.Delete(m.arrived, there, there+1)
	case outcome == outbox.Confirmed || outcome == outbox.Unknown && took:
		m.arrive(message)
	}
	m.resolved(outbox.Result{Message: message, Outcome: outcome, Reason: reason})
}

// noRoom: the publisher gives a message back, to come again later.
func (m *model) noRoom(i int) {
	message := m.inFlight[i]
	if m.tooLate[message] {
		return
	}
	m.inFlight = slices.Delete(m.inFlight, i, i+1)
	m.resolved(outbox.Result{Message: message, Outcome: outbox.NotSent, RetryIn: time.Second})
}

func (m *model) resolved(result outbox.Result) {
	out, _ := m.core.Resolved(result)
	m.apply(out)
}

// apply does what the core has decided, as the relay does.
func (m *model) apply(out core.Out) {
	m.pending = append(m.pending, out.Settle...)
	for _, message := range out.Publish {
		m.publish(message)
	}
}

// modelWritten is the result of a batch of the settler.
type modelWritten struct{ done, hidden []outbox.Settlement }

// settle writes pending rows, as the settler and its statements do.
func (m *model) settle() {
	m.commitSettled()
	m.hearSettled()
}

// commitSettled runs the statements. Locked rows wait like invisible rows.
func (m *model) commitSettled() {
	if m.unheard != nil {
		return
	}
	seen := m.snapshot()
	m.prove()
	m.core.MarkLate(m.pending)
	m.core.MarkLate(m.hidden)
	batch := append(m.pending, m.hidden...)
	m.pending, m.hidden, m.unheard = nil, nil, &modelWritten{}
	for _, s := range batch {
		row := m.rows[s.Message.ID-1]
		if gone := s.Message.XID == 0 || s.Message.Server != m.restarts || seen.Finished(s.Message.XID); gone && (m.lost[row.id] || !row.tx.visible) {
			m.unheard.done = append(m.unheard.done, s)
			continue
		}
		if m.lost[row.id] || !row.tx.visible || row.person {
			m.unheard.hidden = append(m.unheard.hidden, s)
			continue
		}
		m.unheard.done = append(m.unheard.done, s)
		m.write(row, s)
	}
}

func (m *model) hearSettled() {
	if written := m.unheard; written != nil {
		m.unheard, m.hidden = nil, written.hidden
		m.core.Settled(written.done)
	}
}

func (m *model) write(row *modelRow, s outbox.Settlement) {
	switch {
	case row.gone:
	case s.Decision.Reason == outbox.ReasonCoalesced:
		newer := slices.ContainsFunc(m.rows, func(n *modelRow) bool {
			return n.coalesce == row.coalesce && n.key == row.key && n.id > row.id
		})
		if row.coalesce == "" || !newer {
			m.t.Fatalf("row %d was coalesced, and no newer row exists", row.id)
		}
		m.say("deletes row %d unpublished", row.id)
		row.gone, m.coalesced[row.id] = true, true
	case s.Decision.Action == outbox.Delete:
		if m.delivered[row.id] == 0 && !(s.Decision.Reason == outbox.ReasonExpired && m.hasExpired(row)) {
			m.t.Fatalf("row %d is deleted and was not delivered", row.id)
		}
		m.say("deletes row %d", row.id)
		row.gone = true
	case s.Message.AvailableAt == nil && !row.available.IsZero(), s.Message.AvailableAt != nil && !row.available.Equal(*s.Message.AvailableAt): // the fence
	case s.Decision.Action == outbox.Retry:
		if s.Rejected {
			row.attempts++
		}
		m.say("tries row %d again in %s", row.id, s.Decision.Delay)
		row.available, row.duplicate = m.now.Add(s.Decision.Delay), row.duplicate || s.Message.PossibleDuplicate
	case s.Decision.Action == outbox.DeadLetter:
		m.say("makes row %d a dead letter", row.id)
		row.gone, m.dead[row.id], row.duplicate = true, true, row.duplicate || s.Message.PossibleDuplicate
	}
}

func (w *world) pass(d time.Duration) { w.now = w.now.Add(d) }

// endWell ends the process of a leader, if nothing of it is on its way, and starts it again.
func (m *model) endWell() {
	if older, quiet := m.core.Quiet(); quiet && m.leads() {
		m.say("ends well")
		m.holder, m.word = nil, &older
		m.launch()
	}
}

// crash ends the process. Sent messages may have arrived.
func (m *model) crash(arrived []bool) {
	for i, message := range m.inFlight {
		if !m.tooLate[message] && arrived[i%len(arrived)] {
			m.arrive(message)
		}
	}
	m.boot()
}

// die ends the process of one of several relays, and starts it again. Messages that it has sent may arrive later.
func (m *model) die() {
	for _, message := range m.inFlight {
		if !m.tooLate[message] && !slices.Contains(m.arrived, message) {
			m.onTheirWay = append(m.onTheirWay, message)
		}
	}
	if m.holder == m {
		m.holder = nil
	}
	m.launch()
}

func (m *model) snapshot() pgsnapshot.Snapshot {
	xmin := uint64(m.lastXID) + 1
	var running []string
	for _, tx := range m.txs {
		if !tx.visible {
			running = append(running, fmt.Sprint(tx.xid))
			xmin = min(xmin, uint64(tx.xid))
		}
	}
	s, err := pgsnapshot.Parse(fmt.Sprintf("%d:%d:%s", xmin, m.lastXID+1, strings.Join(running, ",")))
	if err != nil {
		m.t.Fatalf("%v", err)
	}
	return s
}

// requeue requeues the dead letters of a key with their old ids, all due at once, as the operator package does.
func (m *model) requeue(ids ...int64) {
	m.pass(time.Millisecond) // it was not due when the term began
	tx := &modelTx{scheduled: map[int64]time.Time{}, marked: map[int64]bool{}}
	for _, id := range ids {
		row := m.rows[id-1]
		*row = modelRow{id: id, key: row.key, coalesce: row.coalesce, tx: tx, duplicate: row.duplicate, requeued: true}
		row.available = m.now
		tx.scheduled[id] = m.now
		tx.marked[id] = row.duplicate
		tx.rows = append(tx.rows, row)
		delete(m.dead, id)
		delete(m.expired, id)
	}
	m.commit(tx)
}

// deadOfItsKey returns the dead letters of a row's key in id order; for a row without a key only the row.
func (m *model) deadOfItsKey(id int64) (ids []int64) {
	for _, row := range m.rows {
		if m.dead[row.id] && (row.id == id || (row.key != "" && row.key == m.rows[id-1].key)) {
			ids = append(ids, row.id)
		}
	}
	return ids
}

// keepBatch checks that requeued dead letters leave in order, and that no later row of the key leaves between them.
func (m *model) keepBatch(message *outbox.Message) {
	row := m.rows[message.ID-1]
	first := !row.returned && (row.requeued || m.delivered[row.id] == 0)
	row.returned = row.requeued
	for _, earlier := range m.rows[:row.id-1] {
		began := slices.ContainsFunc(earlier.tx.rows, func(r *modelRow) bool { return r.returned && r.tx == earlier.tx })
		if first && row.key != "" && earlier.key == row.key && earlier.requeued && !earlier.returned && !earlier.gone && began {
			m.t.Fatalf("key %s: row %d was delivered before row %d, which had been requeued", row.key, row.id, earlier.id)
		}
	}
}

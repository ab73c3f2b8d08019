package fallback

import (
	"context"
	"errors"
	"fmt"
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
	// clock is the clock of the process; it shows a pause.
	clock time.Time
	// pid is the process of the server that streams to this relay.
	pid uint32
	// restUntil: until then, the previous leader may publish rows that committed before the start.
	restUntil time.Time
	start     uint64
	term      int
	// dueFrom: until then, claims of others that ended with the server may publish rows that were due then, at restarted.
	dueFrom, restarted time.Time
	// late: streamed rows arrive late.
	late bool
	// polls: there is no stream.
	polls bool
	// between takes other steps during a statement; failing reports whether the statement fails.
	between func()
	failing func() bool
	// locking: the statement locks rows.
	locking bool

	// these are lost in a crash
	core     *core.Core
	sweeper  *Sweeper
	streamed int // transactions that the stream has brought or skipped
	inFlight []*outbox.Message
	tooLate  map[*outbox.Message]bool // messages that had expired when they were to be sent
	arrived  []*outbox.Message        // of the messages in flight
	pending  []outbox.Settlement
	hidden   []outbox.Settlement // published, not visible yet
	unheard  *modelWritten       // committed, but the core does not know yet
	claims   []*modelClaim
	open     []*modelClaim // locked, but the core does not know yet
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
	// slotPID is the process that owns the slot; 0: none. pids counts the processes.
	slotPID, pids uint32
	// freeSince is since when nobody owns the slot, lastOwner the relay that owned it last.
	freeSince time.Time
	lastOwner *model
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
	seen            uint64 // claims have seen rows up to this position of it
	restarts        int64
	// failedOver: rows up to this id have lost the traces of claims.
	failedOver int64

	// the broker
	delivered map[int64]int
	firsts    map[string][]int64 // for each key, the ids in the order of first delivery
}

type modelTx struct {
	xid     uint32
	lsn     uint64
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
	locked    *modelClaim
	person    bool // another session locks it
	traced    bool // xmax is not 0
	// postponed is the core whose claim wrote the time last, or nil.
	postponed *core.Core
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
		m.limits.Keys, m.limits.Unseen, m.limits.Unknown = 3, 2, 1
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
	m := &model{world: w, clock: w.now, between: func() {}, failing: never}
	w.relays = append(w.relays, m)
	return m
}

// boot starts a relay process that takes the slot at once.
func (m *model) boot() {
	m.launch()
	if m.polls {
		m.core.SetBoundary(int64(len(m.rows)))
		m.askForSlot()
		return
	}
	m.takeSlot()
}

// launch starts a relay process.
func (m *model) launch() {
	m.core = core.New(m.limits, core.Policy{
		MaxRetries: modelMaxRetries, BackoffTime: modelBackoff, MaxBackoff: time.Minute, DropExpired: m.drops,
	})
	m.core.Clock, m.core.Random = func() time.Time { return m.clock }, func() float64 { return 0 }
	m.inFlight, m.arrived, m.pending, m.hidden, m.unheard, m.claims, m.open = nil, nil, nil, nil, nil, nil, nil
	m.tooLate = map[*outbox.Message]bool{}
	m.sweeper = &Sweeper{
		Core: m.core, Table: m, Planner: NewPlanner(time.Second),
		Settings: Settings{Page: modelPage, SendTimeout: modelTimeout, Polling: m.polls, UpTo: math.MaxInt64}, Lock: m.lock, LockRange: m.lockRange, SlotOwner: m.slotOwner,
		Apply:     m.apply,
		Committed: func([]outbox.Settlement, time.Duration) {},
		Failed:    func(error) {},
		Shuffle: func(n int, swap func(i, j int)) {
			if n > 1 && len(m.rows)%2 == 0 {
				swap(0, n-1)
			}
		},
		start: func(claim *openClaim) {
			open := claim.tx.(*modelClaim)
			open.claim = claim
			open.known()
			m.claims = append(m.claims, open)
		},
	}
	if m.failedOver > 0 {
		m.sweeper.restarts-- // a new process cannot know about traces lost before its start
	}
	m.core.PublisherReady(true)
	m.dueFrom, m.restarted = m.clock.Add(core.RestFor), m.now
	if _, err := m.sweeper.noticeRestart(context.Background()); err != nil {
		m.t.Fatalf("%v", err)
	}
}

// rest sweeps while a sweep is due and no time passes. Otherwise the relay would keep a core busy.
func (m *model) rest() {
	for n := 0; !m.sweeping; n++ {
		kind, _ := m.sweeper.Next()
		if kind == None {
			return
		}
		if n > 10*(len(m.rows)+10) {
			m.t.Fatalf("the sweep of %s never becomes idle: %+v", kind, m.sweeper.Role())
		}
		m.sweep(kind, func() {})
	}
}

// endClaims ends the transactions of the process, as lost connections do.
func (m *model) endClaims() {
	for _, claim := range slices.Concat(m.claims, m.open) {
		claim.ended = true
		claim.unlock()
	}
}

// check checks the invariants.
func (m *model) check() {
	for _, row := range m.rows {
		tracks := func(r *model) bool { return slices.Contains(slices.Concat(r.claims, r.open), row.locked) }
		if row.locked != nil && !slices.ContainsFunc(m.relays, tracks) {
			m.t.Fatalf("row %d is locked by a claim that nobody tracks", row.id)
		}
	}
}

// askForSlot asks the database who owns the slot.
func (m *model) askForSlot() {
	switch {
	case m.polls:
		_ = m.sweeper.CheckSlot(context.Background()) // the model never fails
	case m.owns():
		m.core.Owned(m.clock)
	default:
		if m.core.View().Leader {
			m.core.LostSlot()
		}
		if m.slotPID == 0 || len(m.relays) == 1 {
			m.takeSlot()
		}
	}
}

func (m *model) owns() bool { return m.slotPID == m.pid }

// takeSlot starts the stream at the current WAL position.
func (m *model) takeSlot() {
	m.say("takes the slot")
	free := m.freeSince
	switch {
	case len(m.relays) == 1: // others may have owned it
		free = m.clock.Add(time.Duration(len(m.rows)%2)*time.Second - core.RestFor)
	case m.lastOwner == m:
		free = time.Time{}
	}
	m.lastOwner = m
	m.pids++
	m.pid, m.slotPID = m.pids, m.pids
	m.streamed = len(m.txs)
	m.term++
	if m.start, m.restUntil = m.wal, free; !free.IsZero() {
		m.restUntil = free.Add(core.RestFor)
	}
	m.core.TookSlot(core.Slot{
		Boundary: int64(len(m.rows)), PID: m.pid, Server: m.restarts, Start: m.wal, WALEnd: m.wal, FreeSince: free,
	})
	m.core.Owned(m.clock)
	m.core.StreamLive(true)
}

// failOver replaces the server by one without traces of locks, without the last transactions, and with a WAL and
// transaction ids that end earlier.
func (m *model) failOver(lost int) {
	m.replaceServer(lost)
	if !m.polls {
		m.core.LostSlot()
		m.takeSlot()
	}
}

func (w *world) replaceServer(lost int) {
	for _, row := range w.rows {
		row.traced = false
	}
	kept := max(len(w.txs)-lost, 0)
	for _, tx := range w.txs[kept:] {
		for _, row := range tx.rows {
			row.gone, w.lost[row.id] = true, true
			delete(w.dead, row.id)
		}
	}
	w.lastXID -= uint32(len(w.txs) - kept)
	w.txs = w.txs[:kept]
	w.failedOver = int64(len(w.rows))
	w.wal = 1 + w.wal/2
	w.seen = min(w.seen, w.wal)
	w.restart()
}

// restart ends all sessions. The server has another number then.
func (w *world) restart() {
	for _, r := range w.relays {
		r.endClaims()
		r.dueFrom, r.restarted = r.clock.Add(core.RestFor), w.now
		r.streamed = min(r.streamed, len(w.txs))
	}
	for _, tx := range w.txs {
		tx.visible = true
	}
	w.restarts++
}

// commit ends a transaction.
func (m *model) commit(tx *modelTx) {
	m.lastXID++
	tx.xid, tx.lsn = m.lastXID, m.wal+10
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

// superseded reports whether a newer row with the same coalesce key and ordering key is visible.
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
	at := m.clock.Add(row.expires.Sub(m.now))
	return &at
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
	if m.streamed >= len(m.txs) || !m.core.View().Leader {
		return
	}
	if m.owns() && !m.late {
		m.core.Owned(m.clock)
	}
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
		owned := m.owns() && !m.late
		if view := m.core.View(); v == core.Left && owned && view.Ready && view.InFlight == 0 && tx.lsn > m.seen {
			m.t.Fatalf("row %d stays in the table, and no claim of this server can have seen it", row.id)
		}
		if len(out.Publish) == 0 {
			m.say(map[bool]string{
				true: "keeps row %d in memory, behind the first row of its key", false: "leaves row %d in the table",
			}[m.core.View().Remembered > before], row.id)
		}
		m.apply(out)
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
	if m.mustRest(m.rows[message.ID-1], message.AvailableAt) && message.TakenAt.Equal(m.clock) {
		m.t.Fatalf("row %d is published while another relay may publish it", message.ID)
	}
	if m.marksExactly && message.PossibleDuplicate {
		m.t.Fatalf("row %d is marked, and nobody can have published it", message.ID)
	}
	if left, expires := message.TimeLeft(m.clock); expires && left <= 0 {
		m.tooLate[message] = true
	}
	m.say("publishes row %d%s", message.ID, map[bool]string{true: " with the mark"}[message.PossibleDuplicate])
	m.inFlight = append(m.inFlight, message)
	if n := len(m.inFlight); n > modelInFlight {
		m.t.Fatalf("%d messages in flight", n)
	}
}

// mustRest reports whether the previous leader, or a claim of another relay, may still publish this row. Rows in claims of
// an earlier term or server are exempt.
func (m *model) mustRest(row *modelRow, due *time.Time) bool {
	claimed := slices.ContainsFunc(m.claims, func(c *modelClaim) bool {
		return (c.ended || c.term < m.term) && slices.ContainsFunc(c.messages, func(message *outbox.Message) bool { return message.ID == row.id })
	})
	if due != nil {
		return m.clock.Before(m.dueFrom) && !due.After(m.restarted) && !claimed
	}
	return !m.polls && m.clock.Before(m.restUntil) && row.tx.lsn <= m.start && !claimed
}

// arrive delivers a message to the broker.
func (m *model) arrive(message *outbox.Message) {
	m.keepBatch(message)
	mark := message.PossibleDuplicate || !message.TakenAt.IsZero() && m.clock.Sub(message.TakenAt) > core.RestFor
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

// resolve ends one flight.
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
	batch := append(m.pending, m.hidden...)
	m.pending, m.hidden, m.unheard = nil, nil, &modelWritten{}
	for _, s := range batch {
		row := m.rows[s.Message.ID-1]
		if gone := s.Message.XID == 0 || s.Message.Server != m.restarts || seen.Finished(s.Message.XID); gone && (m.lost[row.id] || !row.tx.visible) {
			m.unheard.done = append(m.unheard.done, s)
			continue
		}
		if m.lost[row.id] || !row.tx.visible || row.locked != nil || row.person {
			m.unheard.hidden = append(m.unheard.hidden, s)
			continue
		}
		if s.Decision.Action != outbox.Delete {
			s.Message.PossibleDuplicate = s.Message.PossibleDuplicate || row.traced || row.duplicate
		}
		m.unheard.done = append(m.unheard.done, s)
		m.write(row, s)
	}
}

// hearSettled reports the results to the core.
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
	case s.Decision.Action == outbox.Release:
		row.duplicate, row.traced = s.Message.PossibleDuplicate, false
	case s.Message.AvailableAt == nil && !row.available.IsZero(), s.Message.AvailableAt != nil && !row.available.Equal(*s.Message.AvailableAt): // the fence
		if row.postponed == m.core && s.Rejected {
			m.t.Fatalf("row %d: its rejection is not written, since the relay itself has postponed it", row.id)
		}
	case s.Decision.Action == outbox.Retry:
		if s.Rejected {
			row.attempts++
		}
		m.say("tries row %d again in %s", row.id, s.Decision.Delay)
		row.available, row.duplicate, row.traced = m.now.Add(s.Decision.Delay), s.Message.PossibleDuplicate, false
		row.postponed = nil
	case s.Decision.Action == outbox.DeadLetter:
		m.say("makes row %d a dead letter", row.id)
		row.gone, m.dead[row.id], row.duplicate, row.traced = true, true, s.Message.PossibleDuplicate, false
	}
}

// pass lets time pass while the process runs.
func (w *world) pass(d time.Duration) {
	w.now = w.now.Add(d)
	for _, r := range w.relays {
		r.clock = r.clock.Add(d)
	}
}

// crash ends the process. Sent messages may have arrived.
func (m *model) crash(arrived []bool) {
	m.endClaims()
	for i, message := range m.inFlight {
		if !m.tooLate[message] && arrived[i%len(arrived)] {
			m.arrive(message)
		}
	}
	m.boot()
}

// snapshot returns what a query that starts now can see.
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

// modelClaim is a transaction that locks rows.
type modelClaim struct {
	m        *model
	claim    *openClaim
	messages []*outbox.Message
	position uint64
	owner    uint32
	term     int
	at       time.Time
	// ended: the server has ended the transaction.
	ended  bool
	ending []outbox.Settlement // what it writes; nil: it still waits for answers
	wrote  bool
	failed bool
}

func (c *modelClaim) Locked() ([]*outbox.Message, uint64, uint32) {
	return c.messages, c.position, c.owner
}

func (c *modelClaim) Read(context.Context) error { return nil }

func (c *modelClaim) Alive(context.Context) error {
	if c.ended {
		return errFailed
	}
	return nil
}

func (c *modelClaim) Abandon() {
	c.known()
	c.unlock()
}

// known removes the claim from open, when the core learns what the lock has got.
func (c *modelClaim) known() {
	c.m.open = slices.DeleteFunc(c.m.open, func(o *modelClaim) bool { return o == c })
}

func (c *modelClaim) unlock() {
	for _, row := range c.m.rows {
		if row.locked == c {
			row.locked = nil
		}
	}
}

var errEnded = errors.New("the transaction has ended")

func (c *modelClaim) Commit(_ context.Context, rows []outbox.Settlement, postpone time.Duration) error {
	if c.ended {
		c.m.say("finds its claim ended by Postgres")
		return errEnded
	}
	for _, s := range rows {
		row := c.m.rows[s.Message.ID-1]
		if row.locked != c {
			c.m.t.Fatalf("row %d is written by a claim that has not locked it", row.id)
		}
		if s.Decision.Action == outbox.Postpone {
			c.m.say("postpones row %d, which has no answer, by %s", row.id, postpone)
			row.available, row.duplicate, row.traced, row.postponed = c.m.now.Add(postpone), true, false, c.m.core
			s.Message.AvailableAt = pointer(row.available)
			continue
		}
		c.m.write(row, s)
	}
	c.unlock()
	return nil
}

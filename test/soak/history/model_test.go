package history

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"
)

// world is a database, a broker and a relay that keep every promise, with writers, consumers and faults. Its lines are
// a history without violations.
type world struct {
	t     *rapid.T
	harsh bool // with faults that excuse violations, so fewer can be found

	now     time.Duration
	lines   []line
	ids     uint64
	seqs    map[string]int
	writers []*txn // the transaction that each writer is about to end
	txs     []*txn
	table   []*sent // committed and not delivered, in the order of insertion
	sent    []*sent // all written messages
	again   []again // copies that have not arrived yet
	fault   *Fault  // active; nil: none
	faults  int
	want    Counters
}

type txn struct {
	Transaction
	outcome Outcome
	kept    bool
	late    bool // the COMMIT succeeds after its writer has given up
	lost    bool // by the database
}

type sent struct {
	Message
	tx         *txn
	arrivals   int
	unmarked   bool
	deadLetter bool
	vanished   bool // with its queue
}

type again struct {
	*sent
	marked bool
}

func newWorld(t *rapid.T, harsh bool) *world {
	w := &world{t: t, harsh: harsh, seqs: make(map[string]int), writers: make([]*txn, 3)}
	w.emit(line{Run: &Run{Seed: 1}})
	w.prelude()
	return w
}

// prelude has one message of each kind, so that there is always something to break.
func (w *world) prelude() {
	key := func(m Message) Message {
		m.Key, m.Seq = "prelude", w.place("prelude")
		return m
	}
	for _, told := range []struct {
		outcome  Outcome
		kept     bool
		messages []Message
	}{
		{Committed, true, []Message{key(w.message(Plain)), w.message(Scheduled)}},
		{Committed, true, []Message{key(w.message(Plain)), w.message(Unroutable)}},
		{RolledBack, false, []Message{w.message(Plain)}},
		{Unknown, true, []Message{key(w.message(Plain))}},
		{Unknown, false, []Message{w.message(Plain)}},
	} {
		tx := w.begin(0, told.messages)
		tx.outcome, tx.kept = told.outcome, told.kept
		w.commit(tx)
		w.answer(0)
	}
	w.now += 6 * time.Second
	w.drain()
}

func (w *world) emit(l line) {
	w.now += time.Millisecond
	now := w.now
	l.At = &now
	w.lines = append(w.lines, l)
}

func (w *world) place(key string) int {
	w.seqs[key]++
	return w.seqs[key]
}

func (w *world) message(kind Kind) Message {
	w.ids++
	m := Message{Kind: kind}
	binary.BigEndian.PutUint64(m.ID[8:], w.ids)
	if kind == Scheduled {
		m.NotBefore = w.now + rapid.SampledFrom([]time.Duration{1, time.Second, 5 * time.Second}).Draw(w.t, "due")
	}
	return m
}

// begin is the line before COMMIT or ROLLBACK.
func (w *world) begin(writer int, messages []Message) *txn {
	tx := &txn{Transaction: Transaction{ID: int64(len(w.txs) + 1), Writer: writer, Messages: messages}}
	w.emit(line{Ending: &tx.Transaction})
	w.txs = append(w.txs, tx)
	w.writers[writer] = tx
	for i := range messages {
		w.sent = append(w.sent, &sent{Message: messages[i], tx: tx})
	}
	return tx
}

// commit makes the messages of a transaction visible, if it commits.
func (w *world) commit(tx *txn) {
	tx.late = false
	if !tx.kept {
		return
	}
	for _, m := range w.sent {
		if m.tx == tx && !m.Discarded {
			w.table = append(w.table, m)
		}
	}
	slices.SortStableFunc(w.table, func(a, b *sent) int { return int(a.tx.ID - b.tx.ID) })
}

func (w *world) answer(writer int) {
	if tx := w.writers[writer]; tx != nil {
		w.emit(line{Ended: &ended{ID: tx.ID, Outcome: tx.outcome}})
		w.writers[writer] = nil
	}
}

func (w *world) steps() map[string]func(*rapid.T) {
	writer := rapid.IntRange(0, 2)
	return map[string]func(*rapid.T){
		"write":   func(t *rapid.T) { w.write(t, writer.Draw(t, "writer")) },
		"answer":  func(t *rapid.T) { w.answer(writer.Draw(t, "writer")) },
		"wait":    func(t *rapid.T) { w.now += time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond },
		"deliver": w.deliver, "once more": w.deliver, "and once more": w.deliver,
		"redeliver":   w.redeliver,
		"duplicate":   func(*rapid.T) { w.duplicate() },
		"late commit": func(*rapid.T) { w.lateCommits() },
		"fault":       w.breakSomething,
		"heal":        func(*rapid.T) { w.heal() },
	}
}

func (w *world) write(t *rapid.T, writer int) {
	if w.writers[writer] != nil {
		return
	}
	var messages []Message
	for range rapid.IntRange(1, 4).Draw(t, "messages") {
		m := w.message(rapid.SampledFrom([]Kind{Plain, Plain, Binary, Large, Scheduled, Unroutable, Impossible}).Draw(t, "kind"))
		if m.Kind == Scheduled && rapid.IntRange(0, 4).Draw(t, "later") == 0 {
			m.NotBefore += time.Hour
		}
		if k := rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "key"); k != "" {
			m.Key = fmt.Sprint(k, writer)
			m.Seq = w.place(m.Key)
		}
		m.Discarded = rapid.IntRange(0, 7).Draw(t, "discarded") == 0
		messages = append(messages, m)
	}
	tx := w.begin(writer, messages)
	tx.outcome = rapid.SampledFrom([]Outcome{Committed, Committed, Committed, RolledBack, Unknown}).Draw(t, "outcome")
	tx.kept = tx.outcome == Committed || tx.outcome == Unknown && rapid.Bool().Draw(t, "kept")
	if tx.late = tx.outcome == Unknown && rapid.Bool().Draw(t, "late"); !tx.late {
		w.commit(tx)
	}
}

func (w *world) lateCommits() {
	for _, tx := range w.txs {
		if tx.late {
			w.commit(tx)
		}
	}
}

// ready returns the messages that may leave: due, and first of their key.
func (w *world) ready() []*sent {
	held := make(map[string]bool)
	var ready []*sent
	for _, m := range w.table {
		if m.NotBefore <= w.now && !held[m.Key] {
			ready = append(ready, m)
		}
		held[m.Key] = m.Key != ""
	}
	return ready
}

func (w *world) take(m *sent) {
	w.table = slices.DeleteFunc(w.table, func(x *sent) bool { return x == m })
}

func (w *world) deliver(t *rapid.T) {
	ready := w.ready()
	if len(ready) == 0 {
		return
	}
	m := rapid.SampledFrom(ready).Draw(t, "message")
	w.take(m)
	switch {
	case !m.Kind.Arrives():
		m.deadLetter = true
	case w.fault != nil && w.fault.Refuses && rapid.Bool().Draw(t, "refused"):
		m.deadLetter = true
	case w.fault != nil && w.fault.EmptiesQueues && rapid.Bool().Draw(t, "vanished"):
		m.vanished = true
	default:
		w.arrive(m, rapid.Bool().Draw(t, "marked"), rapid.IntRange(0, 9).Draw(t, "redelivered") == 0)
	}
}

func (w *world) arrive(m *sent, marked, redelivered bool) {
	w.emit(line{Delivered: &Delivery{Message: m.ID, Marked: marked, Redelivered: redelivered}})
	if redelivered {
		w.want.Redelivered++
	}
	if m.arrivals == 0 {
		w.want.Delivered++
	} else if !redelivered {
		w.want.Duplicated++
		if marked {
			w.want.DuplicatedMarked++
		} else {
			w.want.DuplicatedUnmarked++
		}
	}
	m.arrivals++
	m.unmarked = m.unmarked || !marked
}

func (w *world) redeliver(t *rapid.T) {
	if arrived := w.having(func(m *sent) bool { return m.arrivals > 0 }); len(arrived) > 0 {
		w.arrive(rapid.SampledFrom(arrived).Draw(t, "message"), rapid.Bool().Draw(t, "marked"), true)
	}
}

func (w *world) having(what func(*sent) bool) []*sent {
	var having []*sent
	for _, m := range w.sent {
		if what(m) {
			having = append(having, m)
		}
	}
	return having
}

func (w *world) duplicate() {
	for _, m := range w.again {
		w.arrive(m.sent, m.marked, false)
	}
	w.again = nil
}

// breakSomething begins a fault. It decides at once what happens to messages in flight: some are duplicated, and some
// arrive after their marked copy.
func (w *world) breakSomething(t *rapid.T) {
	if w.fault != nil {
		return
	}
	w.duplicate()
	w.faults++
	f := &Fault{ID: w.faults, Name: "fault", Duplicates: rapid.IntRange(0, 3).Draw(t, "duplicates")}
	if w.harsh {
		f.Refuses = rapid.Bool().Draw(t, "refuses")
		f.LosesCommits = rapid.Bool().Draw(t, "loses")
		f.EmptiesQueues = rapid.Bool().Draw(t, "empties")
		f.Unmarked = rapid.Bool().Draw(t, "unmarked")
	}
	w.fault = f
	w.emit(line{Began: f})
	arrived := w.having(func(m *sent) bool { return m.arrivals > 0 })
	for range rapid.IntRange(0, f.Duplicates).Draw(t, "in flight") {
		ready := slices.DeleteFunc(w.ready(), func(m *sent) bool { return !m.Kind.Arrives() })
		switch {
		case rapid.Bool().Draw(t, "overtaken") && len(ready) > 0:
			m := rapid.SampledFrom(ready).Draw(t, "message")
			w.take(m)
			w.arrive(m, true, false)
			w.again = append(w.again, again{m, false})
		case len(arrived) > 0:
			m := rapid.SampledFrom(arrived).Draw(t, "message")
			w.again = append(w.again, again{m, !f.Unmarked})
		}
	}
}

func (w *world) heal() {
	if w.fault == nil {
		return
	}
	if w.fault.LosesCommits {
		for _, tx := range w.txs[max(0, len(w.txs)-3):] {
			if tx.kept && w.writers[tx.Writer] != tx && rapid.Bool().Draw(w.t, "lost") {
				tx.kept, tx.lost = false, true
				w.table = slices.DeleteFunc(w.table, func(m *sent) bool { return m.tx == tx })
				for _, m := range w.sent {
					m.deadLetter = m.deadLetter && m.tx != tx
				}
			}
		}
	}
	w.emit(line{Healed: &w.fault.ID})
	w.fault = nil
}

// drain delivers everything that can be delivered.
func (w *world) drain() {
	for len(w.ready()) > 0 {
		for _, m := range w.ready() {
			w.take(m)
			if m.deadLetter = !m.Kind.Arrives(); !m.deadLetter {
				w.arrive(m, false, false)
			}
		}
	}
}

// finish ends the run and records the final state.
func (w *world) finish() {
	for i := range w.writers {
		w.answer(i)
	}
	w.lateCommits()
	w.heal()
	w.now += 6 * time.Second
	w.drain()
	w.duplicate()
	for _, m := range w.table {
		w.emit(line{Remaining: &Row{Message: m.ID}})
	}
	for _, m := range w.having(func(m *sent) bool { return m.deadLetter }) {
		w.emit(line{Remaining: &Row{Message: m.ID, DeadLetter: true, Attempts: 6}})
	}
	for _, tx := range w.txs {
		if tx.kept {
			w.emit(line{Kept: &tx.ID})
		}
	}
	w.emit(line{End: &end{}})
	w.count()
}

// count adds to the expected counters what is known only at the end.
func (w *world) count() {
	w.want.Waiting = len(w.table)
	for _, m := range w.sent {
		done := m.Kind.Arrives() && m.arrivals > 0 || !m.Kind.Arrives() && m.deadLetter
		if m.deadLetter {
			w.want.DeadLettered++
		}
		switch {
		case m.Discarded:
			w.want.Discarded++
			continue
		case m.tx.outcome == RolledBack:
			w.want.RolledBack++
			continue
		case m.tx.outcome == Unknown:
			w.want.Unknown++
			if done && m.tx.kept {
				w.want.Recovered++
			}
		default:
			w.want.Acknowledged++
			if m.tx.lost {
				w.want.LostByDatabase++
			} else if done {
				w.want.OK++
			}
		}
		w.want.Attempt++
		if m.vanished && m.tx.kept {
			w.want.LostWithQueues++
		}
	}
}

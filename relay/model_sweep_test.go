package relay

import (
	"cmp"
	"slices"
	"time"

	"github.com/cdc-relay/cdc-relay/fallback"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
)

// modelSweep is a query whose answer has not reached the core yet.
type modelSweep struct {
	sweep *sweep
	// query reads, and returns what is done with the answer; nil once it has read.
	query func() func() []*outbox.Message
	// claimed is what a claim has brought.
	claimed []*outbox.Message
	// answer hands what was read to the core and returns what is to be published.
	answer func() []*outbox.Message
}

func (m *model) visible() []*modelRow {
	var rows []*modelRow
	for _, row := range m.rows {
		if row.tx.visible && !row.gone {
			rows = append(rows, row)
		}
	}
	return rows
}

func (m *model) firstOfItsKey(row *modelRow) bool {
	return !slices.ContainsFunc(m.visible(), func(r *modelRow) bool { return r.key == row.key && r.id < row.id })
}

// begin sends the query of a sweep. It reads later, and its answer comes later still, so that anything may
// happen between.
func (m *model) begin(kind fallback.Sweep) {
	if m.sweeping != nil {
		return
	}
	m.core.resume(m.now)
	if v := m.core.view(modelPage); !v.Room && kind != fallback.KeyPass {
		return
	}
	s := &modelSweep{sweep: m.core.beginSweep(modelPage)}
	claim := func(among func(*modelRow) bool) func() []*outbox.Message {
		page := m.claimDue(s.sweep.limit, among)
		s.claimed = page.Messages
		return func() []*outbox.Message { return s.sweep.claimed(page, modelLease, false) }
	}
	switch kind {
	case fallback.Due:
		s.query = func() func() []*outbox.Message { return claim(nil) }
	case fallback.Follow:
		keys := m.core.takeMoved(s.sweep.limit.Rows)
		s.query = func() func() []*outbox.Message {
			return claim(func(row *modelRow) bool { return slices.Contains(keys, row.key) })
		}
	case fallback.Leftovers:
		s.query = m.leftovers(s)
	case fallback.Spilled:
		s.query = m.spilled(s)
	case fallback.KeyPass:
		s.query = m.heads(s)
	case fallback.KeyRows:
		s.query = m.keyRows(s)
	}
	m.sweeping = s
}

// read has the query under way see the table as it is now.
func (m *model) read() {
	if s := m.sweeping; s != nil && s.query != nil {
		s.answer, s.query = s.query(), nil
	}
}

// end brings the answer to the core.
func (m *model) end() {
	m.read()
	if s := m.sweeping; s != nil {
		m.sweeping = nil
		published := s.answer()
		s.sweep.end()
		m.publish(published...)
	}
}

func (m *model) page() store.Page { return store.Page{Snapshot: m.snapshot(), Position: m.wal} }

// claimDue takes heads and what follows them directly, as far as it is due; of the keys among them, or of all.
func (m *model) claimDue(limit store.Limit, among func(*modelRow) bool) store.Page {
	page := m.page()
	due := func(row *modelRow) bool { return !row.available.IsZero() && !row.available.After(m.now) }
	visible := m.visible()
	var heads, behind []*modelRow
	for _, row := range visible {
		if due(row) && len(heads) < limit.Rows && (row.key == "" || m.firstOfItsKey(row)) && (among == nil || among(row)) {
			heads = append(heads, row)
		}
	}
	for _, head := range heads {
		run := 1
		for _, row := range visible {
			if row.key != head.key || row.id <= head.id || head.key == "" {
				continue
			}
			if run++; run > limit.Run || !due(row) || len(heads)+len(behind) >= limit.Rows {
				break
			}
			behind = append(behind, row)
		}
	}
	for _, row := range append(heads, behind...) {
		before := row.duplicate
		row.available, row.duplicate, row.lessee = m.now.Add(modelLease), true, m.core
		if standing := m.core.mu.registry.standing(row.message(nil).Ref()); standing == held || standing == confirmed || standing == givenBack {
			row.lessee = nil // its lease ran out meanwhile; what is written under that one comes to nothing
		}
		message := row.message(nil)
		message.PossibleDuplicate = before
		page.Messages = append(page.Messages, message)
	}
	slices.SortFunc(page.Messages, func(a, b *outbox.Message) int { return cmp.Compare(a.ID, b.ID) })
	return page
}

func (m *model) leftovers(s *modelSweep) func() func() []*outbox.Message {
	p := &m.leftPass
	fresh := !p.begun || p.epoch != s.sweep.epoch
	if fresh {
		*p = pass[int64]{begun: true, epoch: s.sweep.epoch, naming: m.core.leftoversBegan()}
	}
	return m.pageOf(s, p, fresh, func() { s.sweep.leftoversEnded(p.first, p.naming) })
}

func (m *model) spilled(s *modelSweep) func() func() []*outbox.Message {
	p := &m.spillPass
	fresh := !p.begun || p.epoch != s.sweep.epoch
	if fresh {
		from := m.core.spilledBegan()
		if from == noSpill {
			return func() func() []*outbox.Message { return func() []*outbox.Message { return nil } }
		}
		*p = pass[int64]{begun: true, epoch: s.sweep.epoch, after: from - 1, from: from}
	}
	return m.pageOf(s, p, fresh, func() { s.sweep.spilledEnded(p.first) })
}

// pageOf is a query for the next page of a pass; the first says what all of the pass can see.
func (m *model) pageOf(s *modelSweep, p *pass[int64], fresh bool, ended func()) func() func() []*outbox.Message {
	return func() func() []*outbox.Message {
		if fresh {
			p.first = m.snapshot()
		}
		return m.readPage(s, p, ended)
	}
}

func (m *model) readPage(s *modelSweep, p *pass[int64], ended func()) func() []*outbox.Message {
	page := m.page()
	for _, row := range m.visible() {
		if row.id > p.after && row.key == "" && row.available.IsZero() && len(page.Messages) < s.sweep.limit.Rows {
			page.Messages = append(page.Messages, row.message(nil))
		}
	}
	return func() []*outbox.Message {
		if len(page.Messages) == 0 {
			p.begun = false
			ended()
			return nil
		}
		p.after = page.Messages[len(page.Messages)-1].ID
		return s.sweep.leftovers(page)
	}
}

// asked tells whether something asks for a sweep, of those that are also run without.
func (m *model) asked(kind fallback.Sweep) bool {
	v := m.core.view(modelPage)
	switch kind {
	case fallback.Leftovers:
		return v.Leftovers || m.leftPass.begun
	case fallback.Spilled:
		return v.Spilled || m.spillPass.begun
	}
	return true
}

func (m *model) heads(s *modelSweep) func() func() []*outbox.Message {
	p := &m.keyPass
	fresh := !p.begun || p.epoch != s.sweep.epoch
	if fresh {
		*p = pass[string]{begun: true, epoch: s.sweep.epoch}
		m.core.keyPassBegan()
	}
	return func() func() []*outbox.Message {
		if fresh {
			p.first = m.snapshot()
		}
		heads := m.headsFrom(p.after)
		return func() []*outbox.Message {
			s.sweep.headsFound(heads)
			if len(heads) <= modelPage {
				p.begun = false
				s.sweep.keyPassEnded(p.first)
				return nil
			}
			p.after = heads[len(heads)-1].Key
			return nil
		}
	}
}

func (m *model) headsFrom(after string) (heads []store.Head) {
	rows := m.visible()
	slices.SortStableFunc(rows, func(a, b *modelRow) int { return cmp.Compare(a.key, b.key) })
	for _, row := range rows {
		if row.key >= after && row.key != "" && m.firstOfItsKey(row) && len(heads) <= modelPage {
			heads = append(heads, store.Head{Key: row.key, Ref: row.message(nil).Ref(), Ready: row.available.IsZero()})
		}
	}
	return heads
}

func (m *model) keyRows(s *modelSweep) func() func() []*outbox.Message {
	keys, limit := s.sweep.takeKeys()
	return func() func() []*outbox.Message {
		page := m.rowsOfKeys(keys, limit)
		return func() []*outbox.Message { return s.sweep.keysFetched(page, m.now) }
	}
}

func (m *model) rowsOfKeys(keys []store.Place, limit store.Limit) store.KeyPage {
	limit.Rows = min(limit.Rows, 1+len(m.visible())%3) // so few that fetches mostly have to read on
	page := store.KeyPage{Snapshot: m.snapshot(), Position: m.wal}
	for _, key := range keys {
		rows := store.KeyRows{Place: key}
		for _, row := range m.visible() {
			if row.key == key.Key && row.id > key.After && len(rows.Rows) < limit.Rows {
				rows.Rows = append(rows.Rows, store.KeyRow{Message: row.message(nil), WrittenBy: row.tx.xid, Ready: row.available.IsZero(), Read: true})
			}
		}
		rows.More = len(rows.Rows) >= limit.Rows
		page.Keys = append(page.Keys, rows)
	}
	return page
}

// quiesce lets everything that waits come to its end, and fails where something
// does not.
func (m *model) quiesce() {
	m.core.publisherReady(true)
	m.core.streamLive(true)
	m.askForSlot()
	kinds := []fallback.Sweep{fallback.Due, fallback.Leftovers, fallback.Spilled, fallback.KeyPass, fallback.KeyRows, fallback.Follow}
	for round := 0; !m.drained(); round++ {
		if round > 50*(len(m.rows)+10) {
			m.t.Fatalf("rows %v are never delivered; gate %+v", m.waiting(), m.core.mu.gate)
		}
		for _, tx := range m.txs {
			tx.visible = true
		}
		m.askForSlot()
		m.streamNext()
		m.end()
		if kind := kinds[round%len(kinds)]; m.asked(kind) {
			m.begin(kind)
			m.end()
		}
		for len(m.inFlight) > 0 {
			m.resolve(0, outbox.Confirmed, true)
		}
		m.settle()
		m.pass(time.Second)
	}
}

func (m *model) waiting() (ids []int64) {
	for _, row := range m.rows {
		if !row.gone {
			ids = append(ids, row.id)
		}
	}
	return ids
}

func (m *model) drained() bool {
	return len(m.waiting()) == 0 && m.streamed == len(m.txs) && m.sweeping == nil &&
		len(m.inFlight) == 0 && len(m.pending) == 0 && len(m.hidden) == 0 && m.unheard == nil
}

// empty checks that a core with nothing to do remembers nothing.
func (m *model) empty() {
	kinds := []fallback.Sweep{fallback.Leftovers, fallback.Spilled, fallback.KeyPass, fallback.KeyRows}
	for range 4 {
		for _, kind := range kinds {
			m.pass(time.Second)
			m.begin(kind)
			m.end()
			m.streamNext()
		}
	}
	c := m.core
	if c.mu.messages != 0 || c.mu.bytes != 0 || c.mu.invisible != 0 || c.mu.gate.queued != 0 {
		m.t.Fatalf("the window holds %d messages, %d bytes, %d invisible, %d queued", c.mu.messages, c.mu.bytes, c.mu.invisible, c.mu.gate.queued)
	}
	if n := len(c.mu.registry.rows); n != 0 {
		m.t.Fatalf("the registry holds %d rows: %+v", n, c.mu.registry)
	}
	if c.mu.leftovers || c.mu.spilledFrom != noSpill || c.mu.gate.suspicious {
		m.t.Fatalf("still sweeping: leftovers %v, spilled from %d, suspicious %v", c.mu.leftovers, c.mu.spilledFrom, c.mu.gate.suspicious)
	}
	if len(c.mu.left)+len(c.mu.unseen) > 0 {
		m.t.Fatalf("transactions %v and %v are waited for", c.mu.left, c.mu.unseen)
	}
	for key, k := range c.mu.gate.keys {
		if k.inFlight != nil || len(k.queue) > 0 {
			m.t.Fatalf("key %s holds %+v", key, k)
		}
	}
}

// leases checks that what this process has claimed it has in memory, or has given back: a
// row that it forgot would wait for the end of its lease, and be taken for a repeat.
func (m *model) leases() {
	var answered []*outbox.Message
	if m.sweeping != nil {
		answered = m.sweeping.claimed
	}
	for _, row := range m.visible() {
		if row.lessee != m.core || row.available.IsZero() || !row.available.After(m.now) || m.core.mu.registry.standing(row.message(nil).Ref()) != unknown {
			continue
		}
		if !slices.ContainsFunc(answered, func(a *outbox.Message) bool { return a.ID == row.id }) {
			m.t.Fatalf("row %d is leased until %s, and forgotten", row.id, row.available)
		}
	}
}

package fallback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/pgsnapshot"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// The model is the table of its sweeps. Other steps may happen during each statement.

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

func (m *model) ready(row *modelRow, upTo int64) bool {
	if row.available.IsZero() {
		return row.id <= upTo
	}
	return !row.available.After(m.now)
}

func (m *model) candidate(row *modelRow, upTo int64) outbox.Candidate {
	message := row.message(nil)
	return outbox.Candidate{
		Ref: message.Ref(), OrderingKey: message.OrderingKey, Size: message.Size(), Ready: m.ready(row, upTo), Due: pointer(row.available), Superseded: row.key != "" && m.superseded(row),
	}
}

// statement runs a query at some moment between its start and its answer.
func (m *model) statement(query func()) error {
	m.between()
	query()
	m.between()
	if m.failing() {
		return errFailed
	}
	return nil
}

var errFailed = errors.New("the statement has failed")

func (m *model) FindDue(_ context.Context, after *outbox.Place, until *time.Time, limit int) (found []outbox.Candidate, at time.Time, err error) {
	err = m.statement(func() {
		rows := m.visible()
		slices.SortStableFunc(rows, func(a, b *modelRow) int { return a.available.Compare(b.available) })
		for _, row := range rows {
			late := until != nil && row.available.After(*until) || row.available.IsZero() || row.available.After(m.now)
			passed := after != nil && cmp.Or(row.available.Compare(after.Due), cmp.Compare(row.id, after.ID)) <= 0
			if !late && !passed && len(found) < limit {
				found = append(found, m.candidate(row, math.MinInt64))
				at = m.now
			}
		}
	})
	return found, at, err
}

// pointer returns nil for the zero time, which is null in the model.
func pointer(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func (m *model) FindNewest(_ context.Context, from, upTo int64, limit int) (found []outbox.Candidate, err error) {
	err = m.statement(func() {
		for _, row := range m.visible() {
			if row.id >= from && row.id <= upTo && row.available.IsZero() && len(found) < limit {
				found = append(found, m.candidate(row, upTo))
			}
		}
	})
	return found, err
}

func (m *model) heads() []*modelRow {
	rows := m.visible()
	slices.SortStableFunc(rows, func(a, b *modelRow) int { return cmp.Compare(a.key, b.key) })
	return slices.DeleteFunc(rows, func(row *modelRow) bool { return row.key == "" || !m.firstOfItsKey(row) })
}

func (m *model) FindKeys(_ context.Context, after *string, keys, each int, upTo int64) (runs []outbox.Run, seen pgsnapshot.Snapshot, err error) {
	m.between()
	seen = m.snapshot()
	err = m.statement(func() {
		for _, row := range m.heads() {
			if (after == nil || row.key > *after) && len(runs) < keys {
				runs = append(runs, m.run(row.key, each, upTo))
			}
		}
	})
	return runs, seen, err
}

func (m *model) FindRuns(_ context.Context, keys []string, each int, upTo int64) (runs []outbox.Run, seen pgsnapshot.Snapshot, err error) {
	m.between()
	seen = m.snapshot()
	err = m.statement(func() {
		for _, row := range m.heads() {
			if slices.Contains(keys, row.key) {
				runs = append(runs, m.run(row.key, each, upTo))
			}
		}
	})
	return runs, seen, err
}

func (m *model) run(key string, each int, upTo int64) (run outbox.Run) {
	for _, row := range m.visible() {
		if row.key == key && len(run) < each {
			run = append(run, m.candidate(row, upTo))
		}
	}
	return run
}

func (m *model) NextDue(context.Context) (next time.Duration, err error) {
	err = m.statement(func() {
		next = 24 * time.Hour
		for _, row := range m.visible() {
			if !row.available.IsZero() {
				next = min(next, max(row.available.Sub(m.now), 0))
			}
		}
	})
	return next, err
}

func (m *model) Snapshot(context.Context, bool) (seen pgsnapshot.Snapshot, err error) {
	err = m.statement(func() { seen = m.snapshot() })
	return seen, err
}

func (m *model) LastID(context.Context) (id int64, ok bool, err error) {
	err = m.statement(func() { id = int64(len(m.rows)) })
	return id, err == nil, err
}

// ReadRows leaves out rows that somebody holds.
func (m *model) ReadRows(_ context.Context, ids []int64, upTo int64) (rows []*outbox.Message, position uint64, err error) {
	position, err = m.reads(&rows, func() {
		for _, id := range slices.Sorted(slices.Values(ids)) {
			if row := m.rows[id-1]; row.tx.visible && !row.gone && !row.person && m.ready(row, upTo) {
				rows = append(rows, m.read(row))
			}
		}
	})
	return rows, position, err
}

func (m *model) ReadRange(_ context.Context, in outbox.Range) (p outbox.Page, err error) {
	p.UpTo = in.UpTo
	p.Position, err = m.reads(&p.Messages, func() {
		for _, row := range m.visible() {
			if row.id >= in.From && row.id <= in.UpTo && row.key == "" && row.available.IsZero() && !slices.Contains(in.Held, row.id) {
				if row.person {
					p.Traced = append(p.Traced, row.id)
				} else {
					p.Messages = append(p.Messages, m.read(row))
				}
				if len(p.Messages)+len(p.Traced) == in.Rows {
					p.UpTo = row.id
					break
				}
			}
		}
	})
	return p, err
}

func (m *model) ReadBody(ctx context.Context, message *outbox.Message, _ int) (read *outbox.Message, err error) {
	rows, _, err := m.ReadRows(ctx, []int64{message.ID}, math.MaxInt64)
	for _, read = range rows {
		read.Unread = 0
	}
	return read, err
}

// read returns a row as a sweep reads it. Each seventh one is large.
func (m *model) read(row *modelRow) *outbox.Message {
	message := row.message(nil)
	message.Deadline, message.Superseded = m.deadline(row), m.superseded(row)
	if row.id%7 == 0 {
		message.Unread = 1 << 30
	}
	m.say("reads row %d", row.id)
	return message
}

// reads runs a statement that reads rows; none if it fails.
func (m *model) reads(rows *[]*outbox.Message, read func()) (position uint64, err error) {
	m.reading = true
	defer func() { m.reading = false }()
	err = m.statement(func() {
		read()
		position, m.seen = m.wal, m.wal
	})
	if err != nil {
		*rows = nil
	}
	return position, err
}

// readBody begins to read the body of a large row, or ends it. A relay that does not certainly lead then leaves the row
// in the table.
func (m *model) readBody() (more bool) {
	if m.body == nil {
		m.body = m.core.NextBody()
		return m.body != nil
	}
	body := m.body
	m.body = nil
	m.prove()
	m.sweeper.readBody(context.Background(), body)
	return true
}

// sweep runs one sweep; other steps may happen meanwhile.
func (m *model) sweep(kind Sweep, between func()) {
	if m.sweeping {
		return
	}
	if m.prove(); !m.sweeper.Role().wants(kind) || !m.core.Certain() {
		return
	}
	m.sweeping, m.between = true, between
	booted := m.core
	_, err := m.sweeper.Once(context.Background(), kind)
	m.sweeping, m.between = false, func() {}
	if err != nil && !errors.Is(err, errFailed) && booted == m.core {
		m.t.Fatalf("%v", err)
	}
}

// quiesce runs everything to its end, and fails if something does not end.
func (w *world) quiesce() {
	for _, r := range w.relays {
		r.late = false
		r.core.PublisherReady(true)
		if !r.polls {
			r.core.StreamLive(true)
		}
		r.askForLock()
	}
	for _, row := range w.rows {
		row.person = false
	}
	for round := 0; slices.ContainsFunc(w.relays, func(r *model) bool { return !r.drained() }); round++ {
		if round > 50*(len(w.rows)+10) {
			w.t.Fatalf("rows %v are never delivered; %+v", w.waiting(), w.relays[0].core.View())
		}
		for _, tx := range w.txs {
			tx.visible = true
		}
		for _, r := range w.relays {
			r.finish(round)
		}
		w.pass(time.Second)
	}
}

func (m *model) finish(round int) {
	kinds := []Sweep{Due, Backlog, Keys, Keys, Keys}
	m.acting = m
	m.askForLock()
	m.streamNext()
	// Another relay may have changed the table, which only a pass without a reason finds.
	unasked := len(m.relays) > 1 && round > 20
	if kind := kinds[round%len(kinds)]; unasked || m.asked(kind) {
		m.sweep(kind, func() {})
	}
	for len(m.inFlight) > 0 {
		m.resolve(0, outbox.Confirmed, "", true)
	}
	for m.readBody() {
	}
	m.settle()
}

// asked reports whether a sweep has a reason, for sweeps that also run without one.
func (m *model) asked(kind Sweep) bool {
	v := m.core.View()
	switch {
	case m.polls:
		return true
	case kind == Backlog:
		return v.Backlog || v.Unseen || m.sweeper.passes.rows.begun
	case kind == Keys:
		return v.Wanted+v.Yielding+v.Again > 0 || v.Unlisted || m.sweeper.passes.keys.begun
	}
	return true
}

func (w *world) waiting() (ids []int64) {
	for _, row := range w.rows {
		if !row.gone {
			ids = append(ids, row.id)
		}
	}
	return ids
}

func (m *model) drained() bool {
	return len(m.waiting()) == 0 && (m.streamed == len(m.txs) || !m.leads()) && len(m.inFlight) == 0 && m.body == nil &&
		len(m.pending) == 0 && len(m.hidden) == 0 && m.unheard == nil
}

func (w *world) lostNothing() {
	for _, row := range w.rows {
		if w.delivered[row.id] == 0 && !w.dead[row.id] && !w.expired[row.id] && !w.coalesced[row.id] && !w.lost[row.id] {
			w.t.Fatalf("row %d was deleted and not delivered", row.id)
		}
	}
}

func (m *model) empty() {
	for n := 0; m.remembers() != "" && n < 8; n++ { // each round may look up a single key of each list
		for _, kind := range []Sweep{Backlog, Keys, Keys, Keys} {
			m.pass(time.Second)
			m.askForLock()
			m.sweep(kind, func() {})
			m.streamNext()
		}
	}
	if what := m.remembers(); what != "" {
		m.t.Fatalf("an idle relay remembers %s", what)
	}
}

func (m *model) remembers() string {
	v, keys := m.core.View(), 0
	if len(m.relays) > 1 && !m.leads() {
		keys = modelInFlight // those that were in flight when its term ended, until its next term
	}
	switch {
	case v.InFlight > 0 || v.Remembered > 0:
		return fmt.Sprintf("%d messages and %d rows", v.InFlight, v.Remembered)
	case m.leads() && !m.polls && (v.Backlog || v.Unlisted || v.Unseen || v.Wanted+v.Yielding+v.Again > 0):
		return fmt.Sprintf("a reason to sweep: %+v", v)
	case v.Keys > keys:
		return fmt.Sprintf("%d keys", v.Keys)
	}
	return ""
}

package fallback

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/internal/pgsnapshot"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// dueTable is a table of due rows, by time and id.
type dueTable struct {
	Table // only FindDue and NextDue are called
	rows  []outbox.Candidate
	now   time.Time
	// each is how long a statement takes for each row, read how many rows all of them have read.
	each time.Duration
	read int
}

func (d *dueTable) FindDue(_ context.Context, after *outbox.Place, until *time.Time, limit int) (found []outbox.Candidate, at time.Time, err error) {
	from, _ := slices.BinarySearchFunc(d.rows, after, func(row outbox.Candidate, after *outbox.Place) int {
		if after == nil {
			return 1
		}
		return cmp.Or(row.Due.Compare(after.Due), cmp.Compare(row.ID, after.ID))
	})
	for _, row := range d.rows[from:] {
		if len(found) == limit {
			break
		}
		passed := after != nil && cmp.Or(row.Due.Compare(after.Due), cmp.Compare(row.ID, after.ID)) <= 0
		if !passed && !row.Due.After(d.now) && (until == nil || !row.Due.After(*until)) {
			found, at = append(found, row), d.now
		}
	}
	d.read += len(found)
	d.now = d.now.Add(time.Duration(len(found)) * d.each)
	return found, at, nil
}

func (d *dueTable) NextDue(context.Context) (time.Duration, error) { return 0, nil }

// Thousands of rows that stay due must not keep a pass from the rows behind them, whether these rows have the same time
// or not, cannot be locked, or are rejected and due again at once.
func TestAPassOverDueRowsReadsEachRowOnce(t *testing.T) {
	const stuck = 3000
	for _, c := range []struct {
		name           string
		apart          time.Duration
		locked, comeIn bool
		key            *string
	}{
		{name: "rows of one time are never settled"},
		{name: "rows of many times are never settled", apart: time.Millisecond},
		{name: "rows of one time are locked", locked: true},
		{name: "rows of many times are locked", apart: time.Millisecond, locked: true},
		{name: "rows become due meanwhile", comeIn: true},
		{name: "rows of a key wait", key: new("k")},
		{name: "rows of many times and of a key wait", apart: time.Millisecond, key: new("")},
	} {
		table := &dueTable{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
		for id := range int64(stuck) {
			due := time.Time{}.Add(time.Duration(id) * c.apart)
			table.rows = append(table.rows, outbox.Candidate{Ref: outbox.Ref{ID: id + 1}, OrderingKey: c.key, Size: 300, Ready: true, Due: &due})
		}
		table.rows = append(table.rows, outbox.Candidate{Ref: outbox.Ref{ID: math.MaxInt64}, Size: 300, Ready: true, Due: new(table.now)})
		tries := map[int64]int{}
		s := polling(table, &table.now, func(id int64) { tries[id]++ })
		if c.locked {
			s.Table.(*polled).locked = true
		}
		s.Apply = func(out core.Out) {
			for _, m := range out.Publish {
				if c.comeIn {
					again := outbox.Candidate{Ref: outbox.Ref{ID: int64(len(table.rows) + 1)}, Size: 300, Ready: true, Due: new(table.now.Add(time.Second))}
					table.rows = append(table.rows, again)
				}
				rejected, _ := s.Core.Resolved(outbox.Result{Message: m, Outcome: outbox.Rejected})
				s.Core.Settled(rejected.Settle) // without a change in the table
			}
			table.now = table.now.Add(time.Second)
		}
		pages := 0
		for more := true; more; pages++ {
			if pages > 100 {
				t.Fatalf("%s: the pass does not end; %d rows were tried, row 1 %d times", c.name, len(tries), tries[1])
			}
			var err error
			if more, err = s.Once(t.Context(), Due); err != nil {
				t.Fatal(err)
			}
		}
		if c.locked && !s.Core.View().Due {
			t.Errorf("%s: no pass looks at them again", c.name)
		}
		if tries[math.MaxInt64] != 1 || c.key == nil && (tries[1] != 1 || tries[stuck] != 1) {
			t.Errorf("%s: the last row was tried %d times, the first %d", c.name, tries[math.MaxInt64], tries[1])
		}
	}
}

func (d *dueTable) FindRuns(_ context.Context, keys []string, _ int, _ int64) (runs []outbox.Run, seen pgsnapshot.Snapshot, err error) {
	for i := range keys {
		runs = append(runs, outbox.Run{{Ref: outbox.Ref{ID: int64(-i - 1)}, OrderingKey: &keys[i]}})
	}
	return runs, seen, nil
}

func (d *dueTable) FindKeys(context.Context, *string, int, int, int64) ([]outbox.Run, pgsnapshot.Snapshot, error) {
	return nil, pgsnapshot.Snapshot{}, nil
}

func (d *dueTable) FindNewest(context.Context, int64, int64, int) ([]outbox.Candidate, error) {
	return nil, nil
}

func (d *dueTable) LastID(context.Context) (int64, bool, error) { return 0, true, nil }

// Due rows behind blocked keys must neither be read each poll interval, nor delay other due rows.
func TestDueRowsBehindBlockedKeysDelayNoOtherDueRow(t *testing.T) {
	const blocked = 50_000
	for _, c := range []struct {
		name string
		keys int
		// earlier is how long before its commit a row is due; streamed: the stream brings it.
		earlier  time.Duration
		streamed bool
		within   time.Duration
	}{
		{name: "one key", keys: 1, within: 2 * poll},
		{name: "a thousand keys", keys: 1000, within: 2 * poll},
		{name: "committed ten seconds after their time", keys: 1, earlier: 10 * time.Second, within: 2 * poll},
		{name: "due since an hour, streamed", keys: 1, earlier: time.Hour, streamed: true, within: 2 * poll},
		{name: "due since an hour", keys: 1, earlier: time.Hour, within: 3 * time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			began := time.Unix(1_000_000, 0)
			table := &dueTable{now: began, each: 40 * time.Microsecond}
			for id := range int64(blocked) {
				key := fmt.Sprint(id % int64(c.keys))
				table.rows = append(table.rows, outbox.Candidate{Ref: outbox.Ref{ID: id + 1}, OrderingKey: &key, Ready: true, Due: new(began.Add(-time.Minute))})
			}
			committed := map[int64]time.Time{}
			var worst time.Duration
			s := polling(table, &table.now, func(id int64) {
				worst = max(worst, table.now.Sub(committed[id]))
				delete(committed, id)
				table.rows = slices.DeleteFunc(table.rows, func(row outbox.Candidate) bool { return row.ID == id })
			})
			inserted, end := int64(0), began.Add(20*time.Minute)
			for next := began.Add(2 * time.Minute); table.now.Before(end); {
				if !table.now.Before(next) {
					inserted++
					row := outbox.Candidate{Ref: outbox.Ref{ID: blocked + inserted}, Size: 300, Ready: true, Due: new(next.Add(-c.earlier))}
					at, _ := slices.BinarySearchFunc(table.rows, row, func(a, b outbox.Candidate) int { return cmp.Or(a.Due.Compare(*b.Due), cmp.Compare(a.ID, b.ID)) })
					table.rows, committed[row.ID] = slices.Insert(table.rows, at, row), next
					if c.streamed {
						s.Core.Streamed(&outbox.Message{Row: outbox.Row{ID: row.ID, AvailableAt: row.Due}, CommittedAt: next}, 1, false)
					}
					next = next.Add(3 * time.Second)
					continue
				}
				work(t, s, &table.now)
			}
			if inserted < 300 || len(committed) > 100 {
				t.Fatalf("%d of %d rows were not published", len(committed), inserted)
			}
			if worst > c.within {
				t.Errorf("a row waited %s after its commit, want at most %s", worst, c.within)
			}
			if share := (time.Duration(table.read) * table.each).Seconds() / (20 * time.Minute).Seconds(); share > 0.05 {
				t.Errorf("%.1f %% of the time was spent scanning", 100*share)
			}
		})
	}
}

func TestARowWithTheLeastIDIsDueLately(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	table := &dueTable{now: now, rows: []outbox.Candidate{{Ref: outbox.Ref{ID: math.MinInt64}, Size: 300, Ready: true, Due: new(now)}}}
	s := polling(table, &now, func(int64) { now = now.Add(time.Second) }) // it is slow to read
	s.Next()
	s.passes.dueGround.from = new(now)
	if _, err := s.Once(t.Context(), Lately); err != nil || s.swept != 1 {
		t.Errorf("%d rows were published, %v", s.swept, err)
	}
}

// polling returns a sweeper of a leader without a stream, for which the broker confirms each message at once. Leaves is
// called for each row that is read.
func polling(table Table, now *time.Time, leaves func(id int64)) *Sweeper {
	memory := core.New(core.DefaultLimits(400), core.Policy{})
	memory.Clock = func() time.Time { return *now }
	memory.PublisherReady(true)
	memory.BeginTerm(core.Lead{})
	return &Sweeper{
		Core: memory, Table: &polled{Table: table, leaves: leaves}, Planner: NewPlanner(poll), Settings: Settings{Page: 100, UpTo: math.MaxInt64},
		prove: func(context.Context) { memory.Owned(*now) },
		Apply: func(out core.Out) {
			for len(out.Publish) > 0 {
				m := out.Publish[0]
				next, _ := memory.Resolved(outbox.Result{Message: m, Outcome: outbox.Confirmed})
				memory.Settled(next.Settle)
				out.Publish = append(out.Publish[1:], next.Publish...)
			}
		},
	}
}

// polled is a table whose rows can be read. Locked: somebody holds all of them.
type polled struct {
	Table
	leaves func(id int64)
	locked bool
}

func (p *polled) message(id int64) *outbox.Message {
	p.leaves(id)
	return &outbox.Message{Row: outbox.Row{ID: id}}
}

func (p *polled) ReadRows(_ context.Context, ids []int64, _ int64) (rows []*outbox.Message, position uint64, err error) {
	for _, id := range ids {
		if m := p.message(id); !p.locked {
			rows = append(rows, m)
		}
	}
	return rows, 1, nil
}

func (p *polled) ReadRange(ctx context.Context, in outbox.Range) (read outbox.Page, err error) {
	read.Position, read.UpTo = 1, in.UpTo
	found, err := p.FindNewest(ctx, in.From, in.UpTo, in.Rows)
	for _, row := range found {
		if row.OrderingKey == nil {
			read.Messages = append(read.Messages, p.message(row.ID))
		}
	}
	if len(read.Messages) == in.Rows {
		read.UpTo = read.Messages[in.Rows-1].ID
	}
	return read, err
}

// ReadBody fails in the middle of the body.
func (p *polled) ReadBody(_ context.Context, m *outbox.Message, _ int) (*outbox.Message, error) {
	half := *m
	half.Unread, half.Payload = 0, []byte("half of")
	return &half, io.ErrUnexpectedEOF
}

func (p *polled) Snapshot(context.Context, bool) (seen pgsnapshot.Snapshot, err error) {
	return seen, nil
}

// A connection may end while a large body is read.
func TestAPartOfABodyIsNotPublished(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	s := polling(nil, &now, func(int64) {})
	s.Log, s.MostBody = slog.New(slog.DiscardHandler), func() int { return 0 }
	s.Core.Owned(now)
	large := &outbox.Message{Row: outbox.Row{ID: 1}, Defects: outbox.Defects{Unread: 100 << 20}}
	swept, _ := s.Core.Swept(core.Read{Messages: []*outbox.Message{large}, Position: 1, Epoch: s.Core.View().Epoch})
	s.apply(swept)
	apply := s.Apply
	s.Apply = func(out core.Out) {
		if len(out.Publish) > 0 {
			t.Errorf("published %q", out.Publish[0].Payload)
		}
		apply(out)
	}
	s.readBody(t.Context(), s.Core.NextBody())
	if v := s.Core.View(); v.InFlight != 0 || !v.Backlog {
		t.Errorf("the row does not wait in the table: %+v", v)
	}
}

// work runs the sweep that is due, or waits for it.
func work(t *testing.T, s *Sweeper, now *time.Time) {
	t.Helper()
	s.Core.Owned(*now)
	kind, wait := s.Next()
	if kind == None {
		*now = now.Add(min(wait, 100*time.Millisecond))
	} else if _, err := s.Once(t.Context(), kind); err != nil {
		t.Fatal(err)
	}
}

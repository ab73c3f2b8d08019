package fallback

import (
	"cmp"
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// dueTable is a table of due rows, by time and id.
type dueTable struct {
	Table // only FindDue and NextDue are called
	rows  []outbox.Candidate
	now   time.Time
}

func (d *dueTable) FindDue(_ context.Context, after *outbox.Place, until *time.Time, limit int) (found []outbox.Candidate, at time.Time, err error) {
	for _, row := range d.rows {
		passed := after != nil && cmp.Or(row.Due.Compare(after.Due), cmp.Compare(row.ID, after.ID)) <= 0
		if !passed && !row.Due.After(d.now) && (until == nil || !row.Due.After(*until)) && len(found) < limit {
			found, at = append(found, row), d.now
		}
	}
	return found, at, nil
}

func (d *dueTable) NextDue(context.Context) (time.Duration, error) { return 0, nil }

func (d *dueTable) Restarts() int64 { return 0 }

type dueTx struct{ messages []*outbox.Message }

func (d dueTx) Locked() ([]*outbox.Message, uint64, uint32) { return d.messages, 1, 0 }

func (d dueTx) Commit(context.Context, []outbox.Settlement, time.Duration) error { return errFailed }

func (d dueTx) Abandon() {}

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
		memory := core.New(core.DefaultLimits(400), core.Policy{MaxRetries: 5})
		s := &Sweeper{
			Core: memory, Table: table, Clock: time.Now, Planner: NewPlanner(time.Second), Settings: Settings{Page: 100},
		}
		memory.PublisherReady(true)
		s.Lock = func(_ context.Context, ids []int64, _ outbox.Fresh) (Transaction, error) {
			var tx dueTx
			for _, id := range ids {
				if tries[id]++; !c.locked {
					due := table.rows[slices.IndexFunc(table.rows, func(row outbox.Candidate) bool { return row.ID == id })].Due
					tx.messages = append(tx.messages, &outbox.Message{Row: outbox.Row{ID: id, AvailableAt: due}})
				}
			}
			return tx, nil
		}
		var sent []*outbox.Message
		s.Apply = func(out core.Out) {
			sent = append(sent, out.Publish...)
			memory.Settled(out.Settle) // without a change in the table
		}
		s.Start = func(claim *Claim) {
			for _, m := range sent {
				if c.comeIn {
					again := outbox.Candidate{Ref: outbox.Ref{ID: int64(len(table.rows) + 1)}, Size: 300, Ready: true, Due: new(table.now.Add(time.Second))}
					table.rows = append(table.rows, again)
				}
				memory.Resolved(outbox.Result{Message: m, Outcome: outbox.Rejected})
			}
			sent = nil
			claim.finish(claim.written(claim.end(), false))
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
		if tries[math.MaxInt64] != 1 || c.key == nil && (tries[1] != 1 || tries[stuck] != 1) {
			t.Errorf("%s: the last row was tried %d times, the first %d", c.name, tries[math.MaxInt64], tries[1])
		}
	}
}

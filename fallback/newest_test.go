package fallback

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/internal/pgsnapshot"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// newestTable is a table of a million scheduled rows, and some fresh rows. A statement takes a
// microsecond for each id that it scans.
type newestTable struct {
	dueTable
	last    int64
	fresh   map[int64]time.Time // when it was committed
	scanned int64
}

func (n *newestTable) FindNewest(_ context.Context, from, upTo int64, limit int) (found []outbox.Candidate, err error) {
	if ids := min(upTo, n.last) - max(from, 1) + 1; ids > 0 {
		n.scanned += ids
		n.now = n.now.Add(time.Duration(ids) * time.Microsecond)
	}
	for id := range n.fresh {
		if id >= from && id <= upTo && len(found) < limit {
			found = append(found, outbox.Candidate{Ref: outbox.Ref{ID: id}, Size: 300, Ready: true})
		}
	}
	return found, nil
}

func (n *newestTable) NextDue(context.Context) (time.Duration, error) { return time.Hour, nil }

func (n *newestTable) LastID(context.Context) (int64, bool, error) { return n.last, true, nil }

// While a million scheduled rows wait, a relay without a stream must neither read them each poll interval, nor let other
// rows wait until it reads them again.
func TestScheduledRowsDelayNoNewRow(t *testing.T) {
	const scheduled = 1_000_000
	for _, c := range []struct {
		name string
		// later is how long after its id a row is committed; restart: the sequence restarts.
		later   time.Duration
		restart bool
		within  time.Duration
	}{
		{name: "committed at once", within: 2 * poll},
		{name: "committed ten seconds after the id was assigned", later: 10 * time.Second, within: 2 * poll},
		{name: "committed minutes after the id was assigned", later: 2 * time.Minute, within: 30 * time.Second},
		{name: "ids below those of the scheduled rows", restart: true, within: 30 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			began := time.Unix(1_000_000, 0)
			table := &newestTable{dueTable: dueTable{now: began}, last: scheduled, fresh: map[int64]time.Time{}}
			var worst time.Duration
			s := polling(table, &table.now, func(id int64) {
				worst = max(worst, table.now.Sub(table.fresh[id]))
				delete(table.fresh, id)
			})
			pending, inserted, published := map[int64]time.Time{}, 0, 0 // pending: id assigned, not committed
			for next := began.Add(2 * time.Minute); table.now.Before(began.Add(20 * time.Minute)); {
				for id, at := range pending {
					if !table.now.Before(at) {
						table.fresh[id] = at
						delete(pending, id)
					}
				}
				if !table.now.Before(next) {
					if c.restart && inserted == 0 {
						table.last = 0
					}
					table.last++
					inserted++
					pending[table.last] = next.Add(c.later)
					next = next.Add(3 * time.Second)
					continue
				}
				before := len(table.fresh)
				work(t, s, &table.now)
				published += before - len(table.fresh)
			}
			if inserted < 300 || published < inserted-100 {
				t.Fatalf("%d of %d rows were published", published, inserted)
			}
			if worst > c.within {
				t.Errorf("a row waited %s after its commit, want at most %s", worst, c.within)
			}
			if share := float64(table.scanned) / 1e6 / (20 * time.Minute).Seconds(); share > 0.11 {
				t.Errorf("%.1f %% of the time was spent scanning", 100*share)
			}
		})
	}
}

// growingTable is a table whose writers are as fast as the relay: after each page, it has as many new rows.
type growingTable struct {
	Table // the other methods are not called
	last  int64
}

func (g *growingTable) FindNewest(_ context.Context, from, upTo int64, limit int) (found []outbox.Candidate, err error) {
	for id := max(from, 1); id <= min(upTo, g.last) && len(found) < limit; id++ {
		found = append(found, outbox.Candidate{Ref: outbox.Ref{ID: id}, Size: 300, Ready: true})
	}
	g.last += int64(limit)
	return found, nil
}

func (g *growingTable) LastID(context.Context) (int64, bool, error) { return g.last, true, nil }

// While a relay without a stream reads a backlog of two minutes, each new row leaves within two poll intervals.
func TestABacklogDelaysNoNewRow(t *testing.T) {
	key := "k"
	for name, key := range map[string]*string{"without a key": nil, "with a key": &key} {
		t.Run(name, func(t *testing.T) {
			began := time.Unix(1_000_000, 0)
			table := &longTable{dueTable: dueTable{now: began}, last: 120_000, key: key, fresh: map[int64]time.Time{}}
			var worst time.Duration
			leaves := func(id int64) {
				if at, fresh := table.fresh[id]; fresh {
					worst = max(worst, table.now.Sub(at))
					delete(table.fresh, id)
				}
			}
			s := polling(table, &table.now, leaves)
			inserted := 0
			for next := began.Add(10 * time.Second); table.read < 120_000; {
				if !table.now.Before(next) {
					table.last++
					table.fresh[table.last] = next
					next = next.Add(3 * time.Second)
					inserted++
				}
				work(t, s, &table.now)
			}
			if inserted < 30 || len(table.fresh) > 2 || worst > 2*poll {
				t.Errorf("of %d rows, %d have not left, and one waited %s", inserted, len(table.fresh), worst)
			}
		})
	}
}

// longTable has a backlog of rows without a key that leave at 1,000 a second, and new rows with a key or without.
type longTable struct {
	dueTable
	last, read int64
	key        *string
	fresh      map[int64]time.Time
}

func (l *longTable) FindNewest(_ context.Context, from, upTo int64, limit int) (found []outbox.Candidate, err error) {
	for id := max(from, l.read+1); id <= min(upTo, 120_000) && len(found) < limit; id++ {
		found = append(found, outbox.Candidate{Ref: outbox.Ref{ID: id}, Size: 300, Ready: true})
		l.read = id
	}
	l.now = l.now.Add(time.Duration(len(found)) * time.Millisecond)
	for id := range l.fresh {
		if id >= from && id <= upTo && len(found) < limit {
			found = append(found, outbox.Candidate{Ref: outbox.Ref{ID: id}, OrderingKey: l.key, Size: 300, Ready: true})
		}
	}
	return found, nil
}

func (l *longTable) FindRuns(context.Context, []string, int, int64) (runs []outbox.Run, seen pgsnapshot.Snapshot, err error) {
	for _, id := range slices.Sorted(maps.Keys(l.fresh)) {
		runs = append(runs, outbox.Run{{Ref: outbox.Ref{ID: id}, OrderingKey: l.key, Size: 300, Ready: true}})
		break
	}
	return runs, seen, nil
}

func (l *longTable) NextDue(context.Context) (time.Duration, error) { return time.Hour, nil }

func (l *longTable) LastID(context.Context) (int64, bool, error) { return l.last, true, nil }

// Rows that the stream has left behind the pass wait for the next one, so a pass must end, however slowly it reads. It
// comes back to rows that found no room, because the stream took it meanwhile.
func TestAPassEndsWithTheNewestRowOfItsStart(t *testing.T) {
	now, table := time.Unix(1_000_000, 0), &growingTable{last: 1000}
	var s *Sweeper
	var streamed core.Out
	s = polling(table, &now, func(id int64) {
		now = now.Add(10 * time.Millisecond)
		for n := int64(5000); id == 250 && n < 5380; n++ {
			s.Core.Owned(now)
			out, _ := s.Core.Streamed(&outbox.Message{Row: outbox.Row{ID: n}, XID: uint32(n)}, 10, false)
			streamed.Publish = append(streamed.Publish, out.Publish...)
		}
	})
	now = now.Add(time.Minute)
	for pages, more := 0, true; more; pages++ {
		var err error
		if more, err = s.Once(t.Context(), Backlog); err != nil || pages > 20 {
			t.Fatalf("a pass over 1,000 rows has read %d pages of 100: %v", pages, err)
		}
		s.Apply(streamed) // the broker confirms what the stream has published
		streamed = core.Out{}
	}
	if swept := s.swept; swept != 1000 { // each once
		t.Errorf("the pass has read %d rows, not the 1,000 of its start", swept)
	}
}

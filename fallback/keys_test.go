package fallback

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/internal/pgsnapshot"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// A look-up reads a whole page of rows of one key if newer rows replace all of them, and else few, since each waits for
// the confirm of the row before it.
func TestALookUpReadsManyRowsOfAKeyThatNewerRowsReplace(t *testing.T) {
	const page = 500
	replaced, alone := outbox.Candidate{Superseded: true}, outbox.Candidate{}
	for name, test := range map[string]struct {
		last []outbox.Run
		want int
	}{
		"no rows":           {nil, longestRun},
		"replaced rows":     {[]outbox.Run{{replaced, replaced}, {replaced}}, page},
		"one is to be sent": {[]outbox.Run{{replaced, alone}, {replaced}}, longestRun},
	} {
		s := &Sweeper{Settings: Settings{Page: page}}
		s.measure(test.last)
		if got := s.runOf(page, 1); got != test.want {
			t.Errorf("after %s: %d rows, want %d", name, got, test.want)
		}
	}
}

// runsTable is a table of keys whose heads are rejected at each try. Looked counts the keys of all look-ups.
type runsTable struct {
	Table  // only FindRuns is called
	looked map[string]int
	ids    map[string]int64
}

func (r *runsTable) FindRuns(
	_ context.Context, keys []string, _ int, _ int64,
) (runs []outbox.Run, _ pgsnapshot.Snapshot, _ error) {
	for _, key := range keys {
		r.looked[key]++
		if r.ids[key] == 0 {
			r.ids[key] = int64(len(r.ids) + 1)
		}
		runs = append(runs, outbox.Run{{Ref: outbox.Ref{ID: r.ids[key]}, OrderingKey: &key, Ready: true, Size: 300}})
	}
	return runs, pgsnapshot.Snapshot{}, nil
}

// A key with fresh rows waits for one look-up of other keys at most, and these for one of it, however many they are.
func TestAKeyWithFreshRowsWaitsForOneLookUp(t *testing.T) {
	for _, failing := range []int{1, 200, 100_000} {
		table := &runsTable{looked: map[string]int{}, ids: map[string]int64{}}
		now := time.Now()
		s := polling(table, &now, func(int64) {})
		s.Table.(*polled).locked = true
		memory := s.Core
		keys := make([]string, failing)
		for i := range keys {
			keys[i] = fmt.Sprint("failing ", i)
		}
		wantKeys(memory, keys...)
		mostKeys := 0
		for n := range 20 {
			fresh := fmt.Sprint("fresh ", n)
			memory.Streamed(&outbox.Message{Row: outbox.Row{ID: int64(1_000_000 + n), OrderingKey: &fresh}, XID: 1}, 100, false)
			for range 2 {
				before := len(table.looked)
				if _, err := s.lookUp(t.Context(), s.Role()); err != nil {
					t.Fatal(err)
				}
				mostKeys = max(mostKeys, len(table.looked)-before)
			}
			if table.looked[fresh] == 0 {
				t.Fatalf("%d failing keys: a fresh key was not looked up in two look-ups", failing)
			}
		}
		if n := len(table.looked) - 20; n == 0 || mostKeys > s.Page {
			t.Errorf("%d failing keys: %d of them were looked up, at most %d at once", failing, n, mostKeys)
		}
	}
}

// wantKeys asks for look-ups as a sweep of due rows does.
func wantKeys(c *core.Core, keys ...string) {
	var rows []outbox.Candidate
	for i := range keys {
		rows = append(rows, outbox.Candidate{Ref: outbox.Ref{ID: int64(-1 - i)}, OrderingKey: &keys[i], Due: new(time.Now())})
	}
	c.ChooseRows(rows, core.Most{Rows: 1, Bytes: 1})
}

// It ends after few statements, and only the first takes long, even on a slow and distant server.
func TestAPassOverManyIDsIsDividedIntoSpans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		last := rapid.Int64Range(0, 1<<50).Draw(t, "last id")
		perSecond := float64(rapid.Int64Range(10_000, 1<<40).Draw(t, "ids a second"))
		least := time.Duration(rapid.IntRange(0, 400).Draw(t, "ms to the server and back")) * time.Millisecond
		s := span(rapid.Int64Range(0, int64(mostSpan)).Draw(t, "span"))
		for pass := range 3 {
			total, statements, long := time.Duration(0), 0, 0
			for first := int64(math.MinInt64); first <= last; statements++ {
				upTo := s.from(first, last)
				if upTo < first {
					t.Fatalf("from %d to %d", first, upTo)
				}
				ids := passed(first, upTo, last)
				took := least + time.Duration(min(max(float64(ids), 0)/perSecond*1e9, 30e9))
				if total += took; took > longWalk+least {
					long++
				}
				if ids > 0 {
					s = s.next(ids, took)
				}
				if first = upTo + 1; took > 30*time.Second { // the statement timed out, and the pass starts again
					first = math.MinInt64
				}
				if statements > 100+int(float64(last)/float64(leastSpan)) && s != 0 {
					t.Fatalf("pass %d does not end: span %d from %d", pass, s, first)
				}
				if statements > 5000 {
					return // this many ids need this many statements
				}
			}
			if long > 3 {
				t.Fatalf("pass %d had %d statements that took long", pass, long)
			}
			if alone := least + time.Duration(float64(last)/perSecond*1e9); alone < longWalk/2 && statements > 60 {
				t.Fatalf("pass %d had %d statements for what takes %s", pass, statements, alone)
			}
		}
	})
}

func TestTheLastSpanEndsWithTheLastID(t *testing.T) {
	for _, one := range []struct {
		span               span
		first, last, until int64
	}{
		{0, math.MinInt64, 7, 7},
		{0, 8, 1000, 1000},
		{100, math.MinInt64, 1000, -1},
		{100, 0, 1000, 99},
		{100, 8, 1000, 107},
		{100, 951, 1000, 1000},
		{100, 1000, 1000, 1000},
		{100, 1001, 1000, math.MaxInt64},
		{100, 5000, 1000, math.MaxInt64},
		{100, math.MinInt64, math.MaxInt64, math.MaxInt64}, // no sequence
	} {
		if got := one.span.from(one.first, one.last); got != one.until {
			t.Errorf("%d ids from %d of %d end with %d", one.span, one.first, one.last, got)
		}
	}
}

func TestAPassCountsTheIDsBetweenZeroAndTheLast(t *testing.T) {
	for _, one := range []struct{ first, upTo, last, want int64 }{
		{math.MinInt64, math.MaxInt64, 1000, 1001},
		{math.MinInt64, 40, 1000, 41},
		{21, 90, 1000, 70},
		{1001, math.MaxInt64, 1000, 0},
		{21, 90, math.MaxInt64, 0}, // no sequence
	} {
		if got := passed(one.first, one.upTo, one.last); got != one.want {
			t.Errorf("%+v: %d", one, got)
		}
	}
}

package fallback

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

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

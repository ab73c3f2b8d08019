package demo

import (
	"math"
	"slices"
	"time"
)

// latencies keeps the newest durations and computes their percentiles.
type latencies struct {
	// newest is a ring buffer; sorted has the same values in order.
	newest []time.Duration
	next   int
	sorted []time.Duration
	worst  time.Duration
}

// latencyWindow is how many durations are kept.
const latencyWindow = 10_000

func (l *latencies) add(d time.Duration) {
	l.worst = max(l.worst, d)
	if len(l.newest) < latencyWindow {
		l.newest = append(l.newest, d)
	} else {
		oldest := l.newest[l.next]
		l.newest[l.next] = d
		l.next = (l.next + 1) % latencyWindow
		at, _ := slices.BinarySearch(l.sorted, oldest)
		l.sorted = slices.Delete(l.sorted, at, at+1)
	}
	at, _ := slices.BinarySearch(l.sorted, d)
	l.sorted = slices.Insert(l.sorted, at, d)
}

// percentile returns the smallest value that is at least as large as the given share of all values.
func (l *latencies) percentile(share float64) time.Duration {
	if len(l.sorted) == 0 {
		return 0
	}
	return l.sorted[max(0, int(math.Ceil(share*float64(len(l.sorted))))-1)]
}

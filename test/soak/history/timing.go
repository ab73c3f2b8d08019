package history

import (
	"cmp"
	"slices"
	"sort"
	"time"
)

// span is an interval of time, including both ends.
type span struct{ from, to time.Duration }

// delivery measures how fast and how steadily messages arrived.
func (s *state) delivery() Delivered {
	var d Delivered
	if len(s.arrivals) == 0 {
		return d
	}
	first, last := s.arrivedAt(0), s.arrivedAt(len(s.arrivals)-1)
	if last > first {
		d.PerSecond = float64(len(s.arrivals)) / (last - first).Seconds()
	}
	s.latency(&d)
	return d
}

func (s *state) arrivedAt(i int) time.Duration { return s.messages[s.arrivals[i]].firstAt }

// disturbed returns the intervals of faults and their recovery, in order and without overlaps. over returns when a
// healed fault is over.
func (s *state) disturbed(over func(*fault) time.Duration) []span {
	var spans []span
	for i := range s.faults {
		f := &s.faults[i]
		end := never
		if f.healed != never {
			end = over(f)
		}
		spans = append(spans, span{f.began, end})
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	var merged []span
	for _, next := range spans {
		if n := len(merged); n > 0 && next.from <= merged[n-1].to {
			merged[n-1].to = max(merged[n-1].to, next.to)
			continue
		}
		merged = append(merged, next)
	}
	return merged
}

// latency counts only messages without a fault or its recovery between commit and arrival.
func (s *state) latency(d *Delivered) {
	disturbed := s.disturbed(func(f *fault) time.Duration { return max(f.firstArrival, f.caughtUp) })
	var all []time.Duration
	for _, i := range s.arrivals {
		m := &s.messages[i]
		if !s.prompt(i) || m.has(rearrived) || s.transactions[m.transaction].outcome != Committed {
			continue
		}
		ended := s.transactions[m.transaction].endedAt
		from, to := min(ended, m.firstAt), max(ended, m.firstAt)
		n := sort.Search(len(disturbed), func(n int) bool { return disturbed[n].to >= from })
		if n < len(disturbed) && disturbed[n].from <= to {
			continue
		}
		all = append(all, max(m.firstAt-ended, 0)) // a message can arrive before the answer to its COMMIT
	}
	if len(all) == 0 {
		return
	}
	slices.Sort(all)
	d.LatencyOf = len(all)
	percentile := func(p int) Milliseconds { return Milliseconds(all[(len(all)*p+99)/100-1]) }
	d.LatencyP50, d.LatencyP99 = percentile(50), percentile(99)
	d.LatencyMax = Milliseconds(all[len(all)-1])
}

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
	second, inSecond := time.Duration(-1), 0
	for i := range s.arrivals {
		if now := s.arrivedAt(i).Truncate(time.Second); now != second {
			second, inSecond = now, 0
		}
		inSecond++
		d.PeakPerSecond = max(d.PeakPerSecond, inSecond)
	}
	s.latency(&d)
	s.gap(&d)
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
		if !s.prompt(i) || m.has(rearrived) || s.transactions[m.transaction].outcome != committed {
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

// gap finds the longest time without a first arrival, from the first commit to the last and outside faults and
// recoveries.
func (s *state) gap(d *Delivered) {
	from, end := never, time.Duration(-1)
	for i := range s.transactions {
		if t := &s.transactions[i]; t.outcome == committed {
			from, end = min(from, t.endedAt), max(end, t.endedAt)
		}
	}
	disturbed := s.disturbed(func(f *fault) time.Duration { return f.firstArrival })
	for i := range len(s.arrivals) + 1 {
		to := end
		if i < len(s.arrivals) {
			to = min(to, s.arrivedAt(i))
		}
		if Milliseconds(to-from) > d.LongestGap {
			d.undisturbed(span{from, to}, disturbed)
		}
		from = max(to, from)
	}
}

// undisturbed keeps the longest part of a gap that no fault covers.
func (d *Delivered) undisturbed(gap span, disturbed []span) {
	take := func(from, to time.Duration) {
		if length := Milliseconds(to - from); length > d.LongestGap {
			d.LongestGap, d.GapBegan = length, Milliseconds(from)
		}
	}
	for _, dis := range disturbed {
		if dis.to < gap.from {
			continue
		}
		if dis.from > gap.to {
			break
		}
		take(gap.from, min(dis.from, gap.to))
		gap.from = dis.to
	}
	take(gap.from, gap.to)
}

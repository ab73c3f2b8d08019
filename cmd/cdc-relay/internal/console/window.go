package console

import (
	"math"
	"time"
)

// noMessages is the value of a latency without a message.
const noMessages = -2

// point is one sample. An unknown value is negative.
type point struct {
	at                                 time.Time
	perSecond, depth, oldest, p50, p99 float64
}

// span is a time range that a user can choose for the charts.
type span struct {
	Name string // in the URL
	Long time.Duration
	// step is the time between two points of a line.
	step time.Duration
}

func spans() []span {
	return []span{
		{"15m", 15 * time.Minute, historyEvery},
		{"1h", time.Hour, 20 * time.Second},
		{"6h", mostHistory, 2 * time.Minute},
	}
}

// window is the time that the charts show: the span, or less if the console started later.
type window struct {
	from  time.Time
	step  time.Duration
	steps int
}

// leastWindow is what a console shows that has just started.
const leastWindow = 2 * time.Minute

func windowOf(points []point, s span) window {
	if len(points) == 0 {
		return window{step: s.step}
	}
	end := points[len(points)-1].at.Truncate(s.step)
	first := points[0].at.Truncate(s.step)
	long := max(min(end.Sub(first), s.Long-s.step), max(leastWindow, 2*s.step))
	return window{end.Add(-long), s.step, int(long/s.step) + 1}
}

// end is the time of the last step.
func (w window) end() time.Time { return w.from.Add(time.Duration(w.steps-1) * w.step) }

// values returns the value of each step, which may be noMessages; NaN is unknown.
func (w window) values(points []point, of line) []float64 {
	values, counts, none := make([]float64, w.steps), make([]int, w.steps), make([]bool, w.steps)
	for _, p := range points {
		i := int(p.at.Truncate(w.step).Sub(w.from) / w.step)
		v := of.of(p)
		if p.at.Before(w.from) || i >= w.steps || v < 0 {
			if v == noMessages && !p.at.Before(w.from) && i < w.steps {
				none[i] = true
			}
			continue
		}
		if counts[i]++; of.mean {
			values[i] += v
		} else {
			values[i] = max(values[i], v)
		}
	}
	for i, n := range counts {
		switch {
		case n == 0 && none[i]:
			values[i] = noMessages
		case n == 0:
			values[i] = math.NaN()
		case of.mean:
			values[i] /= float64(n)
		}
	}
	return values
}

// joins reports whether a line joins two known values: a sample may be a little late.
func (w window) joins(from, to int) bool {
	return to-from == 1 || time.Duration(to-from)*w.step <= 3*historyEvery
}

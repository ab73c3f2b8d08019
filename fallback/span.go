package fallback

import (
	"math"
	"time"
)

// span is how many ids one statement of a backlog pass scans at most; 0: all. A statement may have to scan millions of
// dead rows, or rows of other shards. It must not delay the other sweeps, nor run into its timeout each time.
type span int64

const (
	leastSpan = span(1 << 10)
	mostSpan  = span(1 << 40)
	// longWalk is how long a statement may take.
	longWalk = time.Second

	greatestID = math.MaxInt64
)

// from returns the last id for the statement that starts at an id, in a pass that ends with the id last. Few ids are
// below zero, so these are read at once.
func (s span) from(first, last int64) (upTo int64) {
	switch {
	case first > last || last == greatestID:
		return greatestID
	case s == 0:
		return last
	case first < 0:
		return min(-1, last)
	}
	return min(first-1+int64(s), last)
}

// next returns the span to use after a statement that has scanned this many ids in this time.
func (s span) next(passed int64, took time.Duration) span {
	switch {
	case took > longWalk:
		return max(span(float64(passed)*(longWalk/2).Seconds()/took.Seconds()), leastSpan)
	case s > 0 && s < mostSpan && took < longWalk/2:
		return 2 * s
	case took < longWalk/2:
		return 0
	}
	return s
}

// passed returns how many ids between zero and last a statement has scanned; nothing, if last is unknown.
func passed(first, upTo, last int64) int64 {
	if last == greatestID {
		return 0
	}
	return min(upTo, last) - max(first, 0) + 1
}

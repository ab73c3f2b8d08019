package fallback

import (
	"math"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
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

// from returns the last id for the statement that starts after an id. Last is the newest id of the sequence. Few ids
// are above it or below zero, so these are read at once.
func (s span) from(after, last int64) (upTo int64) {
	switch {
	case s == 0 || after >= last:
		return greatestID
	case after < -1:
		return -1
	}
	return min(after+int64(s), last)
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

// passed returns how many ids between zero and last a statement has scanned that started after an id and found these
// rows.
func passed(after, upTo, last int64, found []outbox.Candidate) int64 {
	if len(found) > 0 {
		upTo = found[len(found)-1].ID
	}
	return min(upTo, last) - max(after, -1)
}

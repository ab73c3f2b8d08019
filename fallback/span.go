package fallback

import (
	"math"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// span is how many ids one statement of a pass through the table passes at most; 0 is all. What a
// statement has to pass may be millions of dead rows that a long transaction keeps, or rows of others:
// it must not keep the other sweeps waiting, nor be ended by its timeout again and again.
type span int64

const (
	leastSpan = span(1 << 10)
	mostSpan  = span(1 << 40)
	// longWalk is what a statement may take.
	longWalk = time.Second

	greatestID = math.MaxInt64
)

// from is the last id to be read by the statement that begins after an id; last is the newest that was
// handed out. Few ids are beyond that, or below zero.
func (s span) from(after, last int64) (upTo int64) {
	switch {
	case s == 0 || after >= last:
		return greatestID
	case after < -1:
		return -1
	}
	return min(after+int64(s), last)
}

// next is the span after a statement that has passed so many ids in so long.
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

// passed is how many of the ids between zero and last a statement has passed that began after an id and found these rows.
func passed(after, upTo, last int64, found []outbox.Candidate) int64 {
	if len(found) > 0 {
		upTo = found[len(found)-1].ID
	}
	return min(upTo, last) - max(after, -1)
}

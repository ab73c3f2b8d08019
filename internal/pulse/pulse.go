// Package pulse lets what a process does now and then be done at the same moments. Waking an idle
// processor costs far more than what loops that only look around do then (docs/performance.md), so
// that ten of them cost little more than one if they wake it together.
package pulse

import "time"

// Every is the time between two pulses, which are at its multiples on the clock.
const Every = 750 * time.Millisecond

// Within is the longest wait from now on of at most d that ends with a pulse, or d where none comes
// so soon.
func Within(now time.Time, d time.Duration) time.Duration {
	sincePulse := time.Duration(now.Add(d).UnixNano()) % Every
	if sincePulse >= d {
		return d
	}
	return d - sincePulse
}

package replication

import (
	"testing"
	"testing/synctest"
	"time"
)

// Slow transactions are reported at once, and fast ones once per coalesceFor.
func TestCoalescerLimitsTheRateOfFastTransactions(t *testing.T) {
	for name, test := range map[string]struct {
		every, together int           // microseconds between groups; transactions in each, a fifth of a millisecond apart
		awakenings      int           // per second
		late            time.Duration // at most
	}{
		"500 a second":             {2000, 1, 500, 0},
		"1,000 a second, in pairs": {2000, 2, 1000, 0},
		"2,000 a second":           {500, 1, 1000, coalesceFor},
		"2,000 a second, in pairs": {1000, 2, 1000, coalesceFor},
		"50,000 a second":          {20, 1, 1000, coalesceFor},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				arrival := func(n int) time.Time {
					microseconds := n/test.together*test.every + n%test.together*200
					return start.Add(time.Duration(microseconds) * time.Microsecond)
				}
				var c coalescer
				taken, awakenings := 0, 0
				for time.Since(start) < time.Second {
					c.wait()
					time.Sleep(time.Until(arrival(taken)))
					now := time.Now()
					c.woke(now)
					awakenings++
					if late := now.Sub(arrival(taken)); late > test.late {
						t.Fatalf("transaction %d was reported %v late", taken, late)
					}
					for ; !arrival(taken).After(now); taken++ {
					}
				}
				if awakenings < test.awakenings*98/100 || awakenings > test.awakenings*102/100 {
					t.Errorf("%d awakenings in a second, want %d", awakenings, test.awakenings)
				}
			})
		})
	}
}

package relay

import (
	"testing"
	"time"
)

// Rows stay in the table if the window is full for long or most of the time, but not if it is full for moments.
func TestTheStreamWaitsWhileTheWindowIsBrieflyFull(t *testing.T) {
	for name, test := range map[string]struct {
		full, free time.Duration // in turn
		ends       time.Duration // when the budget is used up; 0: never
	}{
		"full for good":            {time.Second, 0, wholeBudget},
		"full most of the time":    {9 * time.Millisecond, time.Millisecond, 350 * time.Millisecond},
		"full half of the time":    {5 * time.Millisecond, 5 * time.Millisecond, 800 * time.Millisecond},
		"full for moments":         {time.Millisecond, 9 * time.Millisecond, 0},
		"full for long, seldom":    {250 * time.Millisecond, 2 * time.Second, 0},
		"full for too long, later": {wholeBudget, 10 * time.Second, wholeBudget},
	} {
		t.Run(name, func(t *testing.T) {
			var b waitBudget
			start := time.Now()
			now := start
			var ended time.Duration
			for ended == 0 && now.Sub(start) < time.Minute {
				for waited := time.Duration(0); waited < test.full; { // a row asks each time that room appears
					left := b.left(now)
					if left <= 0 {
						ended = now.Sub(start)
						break
					}
					wait := min(left, test.full-waited, 100*time.Millisecond)
					waited += wait
					b.spent(now, now.Add(wait))
					now = now.Add(wait)
				}
				if ended == 0 && b.left(now) <= 0 {
					ended = now.Sub(start)
				}
				now = now.Add(test.free)
			}
			if near := test.ends / 5; ended < test.ends-near || ended > test.ends+near {
				t.Errorf("it ended after %v, want %v", ended, test.ends)
			}
			if left := b.left(now.Add(regain * wholeBudget)); left != wholeBudget {
				t.Errorf("after a pause %v are left", left)
			}
		})
	}
}

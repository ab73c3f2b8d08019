package pulse

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestWaitsEndWithAPulse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(0, rapid.Int64Range(0, 1<<61).Draw(t, "now"))
		d := time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "d"))

		wait := Within(now, d)
		if wait <= 0 || wait > d {
			t.Fatalf("waits %s of %s", wait, d)
		}
		if now.Add(wait).UnixNano()%int64(Every) != 0 && wait != d {
			t.Errorf("a wait of %s does not end with a pulse", wait)
		}
		if d >= Every && wait <= d-Every {
			t.Errorf("waits %s of %s: another pulse comes before", wait, d)
		}
	})
}

// Loops of different intervals that wait by it wake together.
func TestLoopsWakeTogether(t *testing.T) {
	wakes := map[time.Time]bool{}
	start := time.Unix(1_800_000_000, 123_456_789)
	for _, every := range []time.Duration{Every, 2 * time.Second, 3 * time.Second, 5 * time.Second} {
		for at := start; at.Sub(start) < time.Minute; at = at.Add(Within(at, every)) {
			wakes[at] = true
		}
	}
	if len(wakes) > 81 {
		t.Errorf("%d awakenings in a minute, want one for each pulse", len(wakes))
	}
}

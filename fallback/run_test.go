package fallback

import "testing"

// TestASlotCheckDoesNotEndAnOutageOfTheTable: while the table was locked, a standby logged two lines every two seconds.
func TestASlotCheckDoesNotEndAnOutageOfTheTable(t *testing.T) {
	for _, test := range []struct {
		succeeded, failed Sweep
		want              bool
	}{
		{SlotCheck, Due, false},
		{SlotCheck, SlotCheck, true},
		{Due, Backlog, true},
		{Due, SlotCheck, true},
	} {
		if got := recovers(test.succeeded, test.failed); got != test.want {
			t.Errorf("%s after %s: %t", test.succeeded, test.failed, got)
		}
	}
}

package relay

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/fallback"
)

// TestASlotCheckDoesNotEndAnOutageOfTheTable: while the table was locked, a standby logged two lines every two seconds.
func TestASlotCheckDoesNotEndAnOutageOfTheTable(t *testing.T) {
	for _, test := range []struct {
		succeeded, failed fallback.Sweep
		want              bool
	}{
		{fallback.SlotCheck, fallback.Due, false},
		{fallback.SlotCheck, fallback.SlotCheck, true},
		{fallback.Due, fallback.Backlog, true},
		{fallback.Due, fallback.SlotCheck, true},
	} {
		if got := recovers(test.succeeded, test.failed); got != test.want {
			t.Errorf("%s after %s: %t", test.succeeded, test.failed, got)
		}
	}
}

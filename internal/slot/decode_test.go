package slot_test

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/slot"
)

// These are the answers of the manuals: no server of version 19 was at hand.
func TestFrom19OnReplicaIsEnough(t *testing.T) {
	for _, one := range []struct {
		major int
		level string
		want  bool
	}{
		{14, "logical", true},
		{18, "replica", false},
		{18, "minimal", false},
		{19, "logical", true},
		{19, "replica", true},
		{19, "minimal", false},
		{20, "replica", true},
		{0, "replica", false}, // a pooler may hide the version
	} {
		if got := slot.CanDecode(one.major, one.level); got != one.want {
			t.Errorf("Postgres %d with wal_level %s can decode: %t", one.major, one.level, got)
		}
	}
}

package problem

import (
	"strings"
	"testing"
)

// Each name goes into one line that psql reads as a remark: a paste of it ends nothing.
func TestHintsThatDestroySayWhatFirst(t *testing.T) {
	for _, gid := range []string{"", "a", "it's", "a\n; DROP TABLE x; --", "a\r\\! id", "-- ", "a\u202e"} {
		got := EndPrepared(gid)
		if !strings.HasPrefix(got, "-- ask") || OneLine(got) != got {
			t.Errorf("%q: got %s", gid, got)
		}
		if gid != "" && strings.Index(got, "COMMIT PREPARED") > strings.Index(got, "ROLLBACK PREPARED") {
			t.Errorf("%q: got %s", gid, got)
		}
	}
	if got := EndSession(7); !strings.Contains(got, "work is lost") {
		t.Errorf("got %s", got)
	}
}

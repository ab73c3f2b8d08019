package replication

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

func TestIntervalsFollowTheServersTimeout(t *testing.T) {
	for _, c := range []struct{ timeout, status, dead time.Duration }{
		{0, 2 * time.Second, time.Minute},
		{time.Minute, 2 * time.Second, time.Minute},
		{6 * time.Second, time.Second, 10 * time.Second},
		{time.Millisecond, 50 * time.Millisecond, 10 * time.Second},
		{time.Hour, 2 * time.Second, time.Hour},
	} {
		if status, dead := intervals(c.timeout); status != c.status || dead != c.dead {
			t.Errorf("%s: %s, %s", c.timeout, status, dead)
		}
	}
}

// SetIntervals sets shorter times than a server's.
func (s *Stream) SetIntervals(statusEvery, deadAfter time.Duration) {
	s.statusEvery, s.deadAfter = statusEvery, deadAfter
}

func TestMain(m *testing.M) { services.Main(m) }

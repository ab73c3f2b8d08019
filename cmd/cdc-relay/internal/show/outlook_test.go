package show

import (
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/relay"
)

// No relay streams, so standbys publish it after StaleTimeout.
func TestExplainSaysWhenARowWithoutALeaderIsPublished(t *testing.T) {
	cfg := relay.DefaultConfig()
	s := Surroundings{Settings: Settings{Config: &cfg}}
	if is := s.outlookOf(operator.Message{State: operator.AtOnce}).text; !strings.Contains(is, "within 5s or so") {
		t.Errorf("got %q", is)
	}
}

// A row that has expired, or will before its turn, is not published.
func TestExplainSaysThatARowExpires(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		onExpired          relay.OnExpired
		expires, available *time.Time
		want               string
	}{
		{relay.OnExpiredDeadLetter, &now, &now, "it has expired, and is not published but a dead letter then"},
		{relay.OnExpiredDrop, &now, &now, "it has expired, and is not published but deleted then"},
		{relay.OnExpiredDeadLetter, new(now.Add(time.Hour)), new(now.Add(2 * time.Hour)), "it will have expired"},
		{relay.OnExpiredDeadLetter, new(now.Add(2 * time.Hour)), new(now.Add(time.Hour)), ""},
		{relay.OnExpiredDeadLetter, new(time.Time{}), new(now.Add(time.Hour)), "it has expired"},
		{relay.OnExpiredDeadLetter, nil, new(now.Add(time.Hour)), ""},
	} {
		cfg := relay.DefaultConfig()
		s := Surroundings{Settings: Settings{Config: &cfg}}
		cfg.OnExpired = c.onExpired
		w := operator.Message{State: operator.Scheduled, AvailableAt: c.available}
		w.ReadAt, w.ExpiresAt = now, c.expires
		if is := s.outlookOf(w).text; !strings.Contains(is, c.want) || (c.want == "" && strings.Contains(is, "expired")) {
			t.Errorf("expires %s, available %s: %q, want %q", c.expires, c.available, is, c.want)
		}
	}
}

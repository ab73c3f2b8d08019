package show

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/relay"
)

func TestDurationsSizesAndCountsAreReadable(t *testing.T) {
	for _, test := range []struct{ got, want string }{
		{Duration(850 * time.Millisecond), "850ms"},
		{Duration(59 * time.Second), "59s"},
		{Duration(200 * time.Second), "3m20s"},
		{Duration(-2 * time.Minute), "-2m0s"},
		{Duration(5*time.Hour + 2*time.Minute), "5h2m"},
		{Duration(99 * time.Hour), "4d3h"},
		{Duration(math.MinInt64), "-106751d23h"},
		{Bytes(0), "0 B"},
		{Bytes(1023), "1023 B"},
		{Bytes(16 << 10), "16.0 kB"},
		{Bytes(300 << 20), "300 MB"},
		{Number(1), "1"},
		{Number(-1234), "-1,234"},
		{Number(-123), "-123"},
		{Number(10_000_000), "10,000,000"},
		{Printable("a\x1b[2Jb\nc größer"), `a\x1b[2Jb\nc größer`},
		{Shortened("größer", 4), "grö…"},
		{Count(operator.Count{N: 3, Precision: operator.Exact}), "3"},
		{Count(operator.Count{N: operator.MostCounted, Precision: operator.AtLeast}), "more than 10,000"},
		{Count(operator.Count{N: 3, Precision: operator.AtLeast}), "at least 3"},
		{Count(operator.Count{N: 3_000_000, Precision: operator.Estimate}), "about 3,000,000"},
	} {
		if test.got != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
	}
}

// No relay streams, so standbys publish it within TakeOver.
func TestExplainSaysWhenARowWithoutALeaderIsPublished(t *testing.T) {
	cfg := relay.DefaultConfig()
	s := Surroundings{Settings: Settings{Config: &cfg}}
	if is := s.outlookOf(operator.Message{State: operator.AtOnce}).text; !strings.Contains(is, "within 6s or so") {
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

func TestExplainSaysThatRetriesHaveNoLimit(t *testing.T) {
	s := Surroundings{Settings: Settings{Config: &relay.Config{MaxRetries: relay.UnlimitedRetries}}}
	for limit, maxAttempts := range map[string]*int{"--max-retries unlimited": nil, "max_attempts 0": new(0)} {
		if got := s.tries(7, maxAttempts); got != "if rejected, again without a limit ("+limit+")" {
			t.Error(got)
		}
	}
}

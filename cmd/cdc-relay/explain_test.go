package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/relay"
)

// No relay streams, so standbys publish it after --stale-timeout.
func TestExplainSaysWhenARowWithoutALeaderIsPublished(t *testing.T) {
	for timeout, want := range map[time.Duration]string{relay.DefaultConfig().StaleTimeout: "within 5s or so", 5 * time.Minute: "within 5m0s or so"} {
		s := surroundings{cfg: &config{relay: relay.DefaultConfig()}}
		s.cfg.relay.StaleTimeout = timeout
		if is := s.outlookOf(operator.Waiting{State: operator.AtOnce}).text; !strings.Contains(is, want) {
			t.Errorf("--stale-timeout %s: %q, want %q", timeout, is, want)
		}
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
		s := surroundings{cfg: &config{relay: relay.DefaultConfig()}}
		s.cfg.relay.OnExpired = c.onExpired
		w := operator.Waiting{State: operator.Scheduled, AvailableAt: c.available}
		w.ReadAt, w.ExpiresAt = now, c.expires
		if is := s.outlookOf(w).text; !strings.Contains(is, c.want) || (c.want == "" && strings.Contains(is, "expired")) {
			t.Errorf("expires %s, available %s: %q, want %q", c.expires, c.available, is, c.want)
		}
	}
}

// An application can set created_at to any time of Postgres.
func TestCommandsShowTimesBeyondTheRangeOfGo(t *testing.T) {
	env, conn := fresh(t)
	want(t, cdcRelay(t, env, "setup", "--mode", "poll"), exitDone)
	for id, at := range []string{"now() + interval '300 years'", "'infinity'", "'-infinity'", "'12000-01-01'", "'0044-03-15 BC'", "'0001-01-01 00:00:00+00'"} {
		execute(t, conn, fmt.Sprintf(`INSERT INTO outbox (id, routing_key, payload, created_at, available_at, expires_at) VALUES (%d, 'k', '1', %[2]s, %[2]s, %[2]s)`, id+1, at))
		execute(t, conn, fmt.Sprintf(`INSERT INTO outbox_dead_letter (id, message_id, created_at, attempts, schema_version, routing_key, payload, failure_reason)
			VALUES (%d, gen_random_uuid(), %s, 6, 1, 'k', '{}', 'nack')`, id+11, at))
		for _, format := range []string{"table", "json"} {
			wantOutput(t, cdcRelay(t, env, "explain", fmt.Sprint(id+1), "--format", format), "created", "expire")
			wantOutput(t, cdcRelay(t, env, "dead-letter", "show", fmt.Sprint(id+11), "--format", format), "created")
		}
	}
	for _, command := range []string{"list", "explain 6", "peek"} {
		out := cdcRelay(t, env, append(strings.Fields(command), "--format", "json")...)
		if null := `"available_at": null`; strings.Contains(out.stdout, null) || strings.Contains(out.stdout, `"expires_at": null`) {
			t.Errorf("%s shows null for a time:\n%s", command, out.stdout)
		}
	}
	wantOutput(t, cdcRelay(t, env, "dead-letter", "list", "--format", "json"), `"created_at": "9999-12-31T23:59:59Z"`, `"created_at": "0001-01-01T00:00:00Z"`)
}

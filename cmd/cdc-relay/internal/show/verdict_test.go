package show

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/relay"
)

func TestTheVerdictHasTheThresholdsOfTheAlerts(t *testing.T) {
	rules, err := os.ReadFile("../../../../deploy/prometheus/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, expr := range []string{
		fmt.Sprintf("cdc_relay_oldest_pending_seconds) > %d\n", int(LateAfter.Seconds())),
		fmt.Sprintf("cdc_relay_queue_depth_rows) > %d and", MostDepth),
		fmt.Sprintf("cdc_relay_slot_retained_bytes) > %de9\n", mostWAL/1_000_000_000),
	} {
		if !strings.Contains(string(rules), expr) {
			t.Errorf("no alert has the expression %q", expr)
		}
	}
}

// healthyStats are those of an outbox in which all is well.
func healthyStats() *Stats {
	depth, client := int64(0), "10.0.0.7:4242"
	return &Stats{
		QueueDepth: &depth, counts: map[string]operator.Count{},
		Slot:  slotView{Owned: true, Owner: &ownerView{PID: 7, Client: &client}},
		Relay: &Live{Ready: true, PublishedPerSecond: 61.2, health: []string{"ready (streaming)"}},
		hosts: []operator.RelayHost{{Address: "10.0.0.7", Connections: 3}},
	}
}

func TestTheWorstFindingIsTheVerdict(t *testing.T) {
	counted := func(n int64) operator.Count { return operator.Count{N: n, Precision: operator.Exact} }
	wal, lost, text := int64(6_000_000_000), "lost", "nack: full\x1b[31m\nqueue"
	for want, change := range map[string]func(*Stats, *relay.Config) *operator.Key{
		"healthy|Healthy: 61 messages/s, leader 10.0.0.7": func(*Stats, *relay.Config) *operator.Key { return nil },
		"healthy|Healthy: no message waits": func(v *Stats, cfg *relay.Config) *operator.Key {
			v.Relay, v.Slot, cfg.Mode = nil, slotView{}, relay.ModePoll
			return nil
		},
		"critical|Critical: no relay runs; 5 messages wait": func(v *Stats, _ *relay.Config) *operator.Key {
			answer := "connection refused"
			v.Relay, v.Slot, v.hosts, *v.QueueDepth = &Live{Error: &answer}, slotView{}, nil, 7
			v.counts["scheduled"] = counted(2)
			return nil
		},
		"attention|Needs attention: no relay streams: messages are published from the table, later than usual": func(
			v *Stats, _ *relay.Config,
		) *operator.Key {
			v.Slot = slotView{}
			return nil
		},
		"critical|Critical: the oldest message has waited for 1m1s": func(v *Stats, _ *relay.Config) *operator.Key {
			v.oldest = 61 * time.Second
			v.counts["dead_letters"] = counted(1)
			return nil
		},
		"attention|Needs attention: 2 messages of key a\\n\\x1b[31m wait behind message 4 (nack: full\\x1b[31m\\nqueue)": func(
			*Stats, *relay.Config,
		) *operator.Key {
			return &operator.Key{Key: "a\n\x1b[31m", Behind: counted(2), First: operator.Message{
				StoredMessage: operator.StoredMessage{ID: 4, LastError: &text},
			}}
		},
		"critical|Critical: 3 messages of key k wait behind dead letter 9": func(v *Stats, _ *relay.Config) *operator.Key {
			v.oldest = 2 * time.Minute
			dead := int64(9)
			return &operator.Key{Key: "k", Behind: counted(2), Dead: &dead}
		},
		"attention|Needs attention: 20,000 messages wait": func(v *Stats, _ *relay.Config) *operator.Key {
			*v.QueueDepth = 1_020_000
			v.counts["scheduled"] = counted(1_000_000)
			return nil
		},
		"attention|Needs attention: slot s retains 5.6 GB of WAL": func(v *Stats, _ *relay.Config) *operator.Key {
			v.Slot.RetainedBytes = &wal
			return nil
		},
		"attention|Needs attention: Postgres removes the WAL of slot s (wal_status lost)": func(
			v *Stats, _ *relay.Config,
		) *operator.Key {
			v.Slot.RetainedBytes, v.Slot.WALStatus = &wal, &lost
			return nil
		},
		"attention|Needs attention: 3 messages wait for a newer relay": func(v *Stats, _ *relay.Config) *operator.Key {
			v.counts["newer_version"] = counted(3)
			return nil
		},
		"critical|Critical: stream: not streaming": func(v *Stats, _ *relay.Config) *operator.Key {
			v.Relay.Ready = false
			v.Relay.health = []string{"not ready (sweeping)", "publisher: ready, ready", "stream: not ready, not streaming"}
			return nil
		},
	} {
		v, cfg := healthyStats(), &relay.Config{Slot: "s", Table: outbox.Table{Schema: "eu", Name: "outbox"}}
		blocked := change(v, cfg)
		got := v.judge(cfg, blocked)
		if string(got.Level)+"|"+got.Text != want {
			t.Errorf("got %s|%s\nwant %s", got.Level, got.Text, want)
		}
		if (got.Command == "") != (got.Level == Healthy) {
			t.Errorf("%s: the command is %q", got.Text, got.Command)
		}
		if got.Command != "" && got.Command != "cdc-relay --version" && !strings.Contains(got.Command, "--table 'eu.outbox'") {
			t.Errorf("%s: the command is for another table: %q", got.Text, got.Command)
		}
	}
}

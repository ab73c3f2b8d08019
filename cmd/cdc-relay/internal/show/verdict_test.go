package show

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/relay"
	"github.com/cdc-relay/cdc-relay/relay/metrics"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// rules are the alerts with their severity, as deploy/prometheus has them.
func rules(t *testing.T) (text string, severity map[string]string) {
	t.Helper()
	read, err := os.ReadFile("../../../../deploy/prometheus/rules.yaml")
	services.Must(t, err)
	severity = make(map[string]string)
	for _, found := range regexp.MustCompile(`(?s)- alert: (\w+)\n.*?severity: (\w+)`).FindAllStringSubmatch(string(read), -1) {
		severity[found[1]] = found[2]
	}
	return string(read), severity
}

func TestTheVerdictHasTheThresholdsOfTheAlerts(t *testing.T) {
	text, _ := rules(t)
	for _, expr := range []string{
		fmt.Sprintf("cdc_relay_oldest_pending_seconds) > %d\n", int(LateAfter.Seconds())),
		fmt.Sprintf("cdc_relay_queue_depth_rows) > %d and", MostDepth),
		fmt.Sprintf("cdc_relay_slot_retained_bytes) > %d * 2 ^ 30\n", mostWAL>>30),
	} {
		if !strings.Contains(text, expr) {
			t.Errorf("no alert has the expression %q", expr)
		}
	}
}

// A verdict leads to the chapter of its alert, except for a blocked key, which has its own.
func TestTheVerdictHasTheChaptersOfTheAlerts(t *testing.T) {
	text, _ := rules(t)
	runbook, err := os.ReadFile("../../../../docs/runbook.md")
	services.Must(t, err)
	headings := strings.ReplaceAll(strings.ToLower(string(runbook)), " ", "-")
	for is, c := range Conditions() {
		url := Verdict{}.of(is).Runbook
		rule := regexp.MustCompile("(?s)- alert: " + c.Alert + "\n.*?runbook_url: (\\S+)").FindStringSubmatch(text)
		if c.Alert != "" && is != BlockedKey && (rule == nil || rule[1] != url) {
			t.Errorf("%s: the chapter is %q, the rule has %q", c.Alert, url, rule)
		}
		if c.Chapter != "" && !strings.Contains(headings, "\n##-"+c.Chapter+"\n") {
			t.Errorf("the runbook has no chapter %s", c.Chapter)
		}
	}
}

// A state has one level, in the views and in the alerts. Only a time series shows latency, restarts, growth, and alarms
// that come and go.
func TestTheVerdictHasTheLevelsOfTheAlerts(t *testing.T) {
	_, severity := rules(t)
	conditions, all := Conditions(), maps.Clone(severity)
	for is := Late; is <= SlotLost; is++ {
		c, known := conditions[is]
		if !known || c.Level.rank() < 1 {
			t.Errorf("condition %d has no level", is)
		}
		if all[c.Alert] != string(c.Level) {
			t.Errorf("%q is %q, the verdict's level is %s", c.Alert, all[c.Alert], c.Level)
		}
		delete(severity, c.Alert)
	}
	for _, alert := range []string{"CdcRelayLatency", "CdcRelayRestarts", "CdcRelayAlarms", "CdcRelayLogLinesDropped"} {
		delete(severity, alert)
	}
	if len(severity) > 0 {
		t.Errorf("the verdict does not know the alerts %v", severity)
	}
}

func healthyStats() *Stats {
	depth, client := int64(0), "10.0.0.7:4242"
	return &Stats{
		QueueDepth: &depth, Settings: Settings{readable: true}, counts: map[string]operator.Count{},
		Slot: slotView{Owned: true, Owner: &operator.Session{PID: 7, Client: &client}},
		Relays: Relays{{
			Host: "web-1", PID: 7, Works: true, Report: relay.Report{
				Ready: true, Role: "streaming", Phase: "ready", Rates: metrics.Rates{PublishedPerSecond: 61.2},
			},
		}},
	}
}

// drains makes the relay publish and the table grow at these rates, measured over so many seconds, with 20,000 messages
// that can leave.
func (v *Stats) drains(depth int64, published, added, seconds float64) {
	*v.QueueDepth = depth
	v.counts["waiting"] = operator.Count{N: 19_000, Precision: operator.Exact}
	v.counts["due"] = operator.Count{N: 1000, Precision: operator.Exact}
	v.Relays[0].Rates = metrics.Rates{PublishedPerSecond: published, NewRowsPerSecond: added, Seconds: seconds}
	v.fall()
}

func TestTheWorstFindingIsTheVerdict(t *testing.T) {
	counted := func(n int64) operator.Count { return operator.Count{N: n, Precision: operator.Exact} }
	group := func(reason, exchange, key string, keys, n int64) operator.Group {
		g := operator.Group{Cause: operator.Cause{Reason: reason, Exchange: exchange}, Keys: keys, N: n}
		if key != "" {
			g.OneKey = &key
		}
		return g
	}
	wal, lost, text := int64(6_000_000_000), "lost", "nack: full\x1b[31m\nqueue"
	aside := relay.Aside{Rows: 2, Published: 1, First: []relay.AsideRow{{ID: 1, Published: true, Error: "fk", Fix: "DROP fk"}}}
	for _, test := range []struct {
		// want is the level, the sentence, the detail and what to do, and the first of the others.
		want    string
		change  func(*Stats)
		blocked *operator.Key
		cfg     relay.Config
	}{
		{want: "ok|Healthy: 61 messages/s, leader 10.0.0.7|||"},
		{
			want:   "ok|Healthy: no message waits, by the tables alone: no relay tells what it does|||",
			change: func(v *Stats) { v.Relays, v.Settings, v.Slot = nil, Settings{}, slotView{} },
			cfg:    relay.Config{Mode: relay.ModePoll},
		},
		{
			want: "critical|Critical: no relay tells that it runs; 5 messages wait||start one; if it ended by itself, its log and cdc-relay check say why|",
			change: func(v *Stats) {
				v.Relays, v.Slot, *v.QueueDepth = nil, slotView{}, 7
				v.counts["scheduled"] = counted(2)
			},
		},
		{
			want: "critical|Critical: no relay answers: relay 7 on host web-1 was last seen 40s ago; 7 messages wait||see its log; if it is not seen within a minute, restart it: it was killed, hangs, or cannot reach Postgres|",
			change: func(v *Stats) {
				v.Relays[0].Works, v.Relays[0].unseen, v.oldest, *v.QueueDepth = false, 40*time.Second, 20*time.Second, 7
			},
		},
		{
			want: "warning|Needs attention: relay 7 on host web-2 was last seen 40s ago||see its log; if it is not seen within a minute, restart it: it was killed, hangs, or cannot reach Postgres|",
			change: func(v *Stats) {
				v.Relays = append(v.Relays, Relay{Host: "web-2", PID: 7, unseen: 40 * time.Second}, Relay{Host: "web-3", PID: 7, unseen: 2 * time.Hour})
			},
		},
		{
			want: "warning|Needs attention: relay 8 on host web-2 is a standby that cannot publish|refused||",
			change: func(v *Stats) {
				v.Relays = append(v.Relays, Relay{Host: "web-2", PID: 8, Works: true, Report: relay.Report{Role: "standby", Detail: "refused", Parts: []relay.Part{{Name: "publisher"}}}})
			},
		},
		{
			want: "warning|Needs attention: the relays differ in --exchange: relay 7 on host web-1 has '', relay 8 on host web-2 has a\\n||give all relays of an outbox the same version and settings|the relays differ in version: relay 7 on host web-1 has v1, relay 8 on host web-2 has v2",
			change: func(v *Stats) {
				v.Relays[0].Version, v.Relays[0].Settings = "v1", map[string]string{"exchange": "", "shard": "0/2"}
				other := v.Relays[0]
				other.PID, other.Host, other.Version, other.Settings = 8, "web-2", "v2", map[string]string{"exchange": "a\n", "shard": "1/2"}
				v.Relays = append(v.Relays, other)
				v.differences = v.Relays.Differences(Fixed{}.Same)
			},
		},
		{
			want: "warning|Needs attention: no relay streams: a running relay publishes from the table, later than usual|the publication is gone|recreate it|",
			change: func(v *Stats) {
				v.Slot, v.Relays[0].Ready = slotView{}, false
				v.Relays[0].Parts = []relay.Part{{Name: "publisher", Ready: true}, {Name: "stream", Detail: "not streaming: the publication is gone", Fix: "recreate it"}}
			},
		},
		{
			want:   "critical|Critical: no relay streams: relay 7 on host web-1 was last seen 12s ago; the oldest message has waited for 1m1s|||",
			change: func(v *Stats) { v.Slot, v.oldest, v.Relays[0].unseen = slotView{}, 61*time.Second, 12*time.Second },
		},
		{
			want: "critical|Critical: the oldest message has waited for 1m1s|||6 dead letters: 4 nack, 2 unroutable; add consumers, or raise the limit of the queue, then resend them, 1 message waits for a newer relay; update the relays",
			change: func(v *Stats) {
				v.oldest = 61 * time.Second
				v.counts["dead_letters"], v.counts["newer_version"] = counted(6), counted(1)
				v.dead.All = []operator.Group{group("nack", strings.Repeat("x", 200), "k", 1, 3), group("unroutable", "", "lost", 1, 2), group("nack", "y", "k", 1, 1)}
			},
		},
		{
			want: "critical|Critical: no message is published: RabbitMQ has an alarm and accepts no messages; 1 message waits|memory||",
			change: func(v *Stats) {
				v.Relays[0].Report = relay.Report{Phase: "blocked", Detail: "memory", Parts: []relay.Part{{Name: "publisher"}}}
				*v.QueueDepth = 1
			},
		},
		{
			want: "critical|Critical: publishing has stopped: 1 message was published, and its row cannot be deleted|fk|DROP fk|",
			change: func(v *Stats) {
				v.Relays[0].Report = relay.Report{Phase: "ready", Stopped: true, Aside: aside, Parts: []relay.Part{{Name: "settle"}}}
			},
		},
		{
			want:   "warning|Needs attention: 1 message was published, and its row cannot be deleted; other messages are not affected|fk|DROP fk|",
			change: func(v *Stats) { v.Relays[0].Aside = aside },
		},
		{
			want:   "warning|Needs attention: the publisher is connected, and has confirmed or rejected no message for 40s||look whether RabbitMQ or the handler hangs|",
			change: func(v *Stats) { v.Relays[0].SilentSeconds = 40 },
		},
		{
			want:    "warning|Needs attention: 2 messages of key a\\n\\x1b[31m wait behind message 4, which was rejected: a queue rejected the message: usually it is full, and has overflow reject-publish|nack: full\\x1b[31m\\nqueue|add consumers, or raise the limit of the queue|",
			blocked: &operator.Key{Key: "a\n\x1b[31m", Behind: counted(2), First: operator.Message{ID: 4, LastError: &text}},
		},
		{
			want:    "critical|Critical: 3 messages of key k wait behind dead letter 9; the oldest message has waited for 2m0s||fix the cause of the dead letter, then resend it; or delete it|",
			change:  func(v *Stats) { v.oldest = 2 * time.Minute },
			blocked: &operator.Key{Key: "k", Behind: counted(2), Dead: new(int64(9))},
		},
		{
			want: "warning|Needs attention: 1,000 dead letters: 350 because the exchange does not exist (exchange x, 350 routing keys); 340 because no queue is bound to the exchange for this routing key (routing key lost); 300 because of custom (2 routing keys); and 1 other cause||declare the exchange \"x\" and bind a queue to it, then resend them|",
			change: func(v *Stats) {
				v.counts["dead_letters"] = counted(1000)
				v.dead.All = []operator.Group{
					group("exchange_missing", "x", "", 350, 350), group("unroutable", "", "lost", 1, 340), group("custom", "", "", 2, 300), group("nack", "", "", 2, 10),
				}
			},
		},
		{
			want: "warning|Needs attention: 2 rejected messages will be tried again, because the exchange does not exist (exchange x, routing key k)||declare the exchange \"x\" and bind a queue to it|",
			change: func(v *Stats) {
				v.retries = operator.Groups{N: counted(2), All: []operator.Group{group("exchange_missing", "x", "k", 1, 2)}}
			},
		},
		{
			want: "critical|Critical: 395 rejected messages will be tried again, and 373 messages wait behind them, because no queue is bound to the exchange for these routing keys (exchange x, 40 routing keys); the oldest message has waited for 1m1s||bind a queue to the exchange \"x\" for these routing keys|1 dead letter: 1 nack; add consumers, or raise the limit of the queue, then resend them",
			change: func(v *Stats) {
				v.oldest = 61 * time.Second
				v.counts["blocked"], v.counts["dead_letters"] = counted(373), counted(1)
				v.dead.All = []operator.Group{group("nack", "", "k", 1, 1)}
				v.retries = operator.Groups{N: counted(395), All: []operator.Group{group("unroutable", "x", "", 40, 395)}}
			},
			blocked: &operator.Key{Key: "k", Behind: counted(2), First: operator.Message{ID: 4, LastError: &text}},
		},
		{
			want: "warning|Needs attention: 230 dead letters, and 1 message waits behind them, because of custom (2 routing keys)|||",
			cfg:  relay.Config{OnDeadLetter: relay.OnDeadLetterBlock},
			change: func(v *Stats) {
				v.counts["blocked"], v.counts["dead_letters"], v.counts["keys_behind_dead_letter"] = counted(1), counted(230), counted(1)
				v.dead.All = []operator.Group{group("custom", "", "", 2, 230)}
			},
			blocked: &operator.Key{Key: "k", Dead: new(int64)},
		},
		{
			want: "warning|Needs attention: about 20,000 rejected messages will be tried again: 60% because of custom (routing key k); 39% because of other (routing key k)|||",
			change: func(v *Stats) {
				v.counts["retrying"] = operator.Count{N: 20_000, Precision: operator.Estimate}
				v.retries = operator.Groups{N: operator.Count{N: 500, Precision: operator.AtLeast}, All: []operator.Group{group("custom", "", "k", 1, 300), group("other", "", "k", 1, 199)}}
			},
		},
		{
			want:    "warning|Needs attention: 500 rejected messages will be tried again|||2 messages of key k wait behind message 4, which was rejected",
			change:  func(v *Stats) { v.counts["scheduled"], v.retries.N = counted(1), counted(500) },
			blocked: &operator.Key{Key: "k", Behind: counted(2), First: operator.Message{ID: 4}},
		},
		{
			want: "warning|Needs attention: 21,000 messages wait: falling, 5,300/s, empty in about 3s|||",
			change: func(v *Stats) {
				v.drains(1_021_000, 5500, 200, 60)
				v.counts["scheduled"] = counted(1_000_000)
			},
		},
		{
			want:   "warning|Needs attention: 21,000 messages wait|||",
			change: func(v *Stats) { v.drains(21_000, 5500, 200, 55) }, // less than a minute
		},
		{
			want:   "warning|Needs attention: 21,000 messages wait|||",
			change: func(v *Stats) { v.drains(21_000, 5500, 5450, 60) }, // noise
		},
		{
			want: "warning|Needs attention: 21,000 messages wait|||",
			change: func(v *Stats) {
				v.drains(21_000, 5500, 200, 60)
				v.falls, v.counts["waiting"], v.counts["due"], v.counts["blocked"] = "", counted(99), counted(0), counted(20_901)
				v.fall()
			},
		},
		{
			want:   "warning|Needs attention: slot s retains 5.6 GB of WAL|||",
			change: func(v *Stats) { v.Slot.RetainedBytes = &wal },
		},
		{
			want: "warning|Needs attention: nobody uses slot old of others, and it retains 5.6 GB of WAL|||",
			change: func(v *Stats) {
				v.showIdle([]slot.Slot{{Name: "small", RetainedBytes: 300 << 20}, {Name: "old", RetainedBytes: wal}})
			},
		},
		{
			want:   "warning|Needs attention: Postgres removes the WAL of slot s (wal_status lost)|||",
			change: func(v *Stats) { v.Slot.RetainedBytes, v.Slot.WALStatus = &wal, &lost },
		},
		{
			want:   "warning|Needs attention: 3 messages wait for a newer relay||update the relays|",
			change: func(v *Stats) { v.counts["newer_version"] = counted(3) },
		},
		{
			want: "critical|Critical: the relay cannot work on its tables|permission denied||",
			change: func(v *Stats) {
				v.Relays[0].Parts = []relay.Part{{Name: "publisher", Ready: true}, {Name: "sweep", Detail: "permission denied"}}
			},
		},
	} {
		v := healthyStats()
		if test.change != nil {
			test.change(v)
		}
		test.cfg.Slot, test.cfg.Table = "s", outbox.Table{Schema: "eu", Name: "outbox"}
		got := v.judge(&test.cfg, test.blocked)
		text := strings.Join([]string{string(got.Level), got.Text, got.Detail, got.Fix, strings.Join(got.Others, ", ")}, "|")
		if text != test.want {
			t.Errorf("got  %s\nwant %s", text, test.want)
		}
		if (got.Command == "") != (got.Level == Healthy) {
			t.Errorf("%s: the command is %q", got.Text, got.Command)
		}
		aboutRelays := regexp.MustCompile(`^[^:;]*: (no relay (tells|answers)|relay \d|the relays differ)`).MatchString(got.Text)
		if aboutRelays != (got.Page == "/relays") {
			t.Errorf("%s: the page is %s", got.Text, got.Page)
		}
		if got.Command != "" && got.Command != "cdc-relay --version" && !strings.Contains(got.Command, "--table 'eu.outbox'") {
			t.Errorf("%s: the command is for another table: %q", got.Text, got.Command)
		}
	}
}

package main

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// countsBy returns a counter of a relay by the values of a label.
func countsBy(t *testing.T, live *show.LiveRelay, name, label string) map[string]int {
	t.Helper()
	r, err := live.Read(t.Context())
	must(t, err)
	counts := make(map[string]int)
	for _, m := range r.Families[name].GetMetric() {
		for _, pair := range m.GetLabel() {
			if pair.GetName() == label {
				counts[pair.GetValue()] += int(m.GetCounter().GetValue())
			}
		}
	}
	return counts
}

// Covers --events-exchange, --log-headers and --metrics-routing-keys.
func TestRunReportsMessagesInEventsLogAndMetrics(t *testing.T) {
	t.Parallel()
	env, db := withTables(t)
	env["CDC_RELAY_AMQP_URL"] = services.VHost(t)
	events := arrivals(t, env["CDC_RELAY_AMQP_URL"], "events", "told")
	arrived := arrivals(t, env["CDC_RELAY_AMQP_URL"], "orders.created", "")
	relay := start(t, env, "run", "--max-retries", "1", "--backoff-time", "0s", "--poll-interval", "100ms", "--events-exchange", "told",
		"--events", "published, rejected, dead_lettered", "--log-headers", "request_id,traceparent", "--log-format", "json", "--metrics-routing-keys", "orders.*")
	live := show.NewLiveRelay(strings.TrimPrefix(relay.httpURL(t), "http://"))
	execute(t, db, `INSERT INTO outbox (routing_key, payload) VALUES ('orders.created', '1')`)
	await.Receive(t, "the message arrives", arrived)
	execute(t, db, `INSERT INTO outbox (routing_key, payload, headers) VALUES
		('orders.nowhere', '1', '{"request_id": "r-7", "traceparent": 12, "token": "s3cr3t", "task": "shop.pay", "kwargsrepr": "s3cr3t"}'), ('elsewhere', '1', NULL)`)
	told := make(map[string]int)
	for total := 0; total < 7; total++ {
		d := await.Receive(t, "a notice comes", events)
		var event struct {
			Event      string
			RoutingKey string `json:"routing_key"`
			Reason     string
			Attempts   int
			Headers    map[string]string
		}
		if err := json.Unmarshal(d.Body, &event); err != nil || event.Event != d.Type || (event.Reason == "") != (event.Event == "published") {
			t.Errorf("%v: %s, type %s", err, d.Body, d.Type)
		}
		told[event.Event+" "+event.RoutingKey]++
		named := map[string]string{"request_id": "r-7", "traceparent": "12", "task": "shop.pay"}
		if event.RoutingKey != "orders.nowhere" {
			named = nil
		}
		if !maps.Equal(event.Headers, named) {
			t.Errorf("headers in %s", d.Body)
		}
	}
	for event, n := range map[string]int{
		"published orders.created": 1, "rejected orders.nowhere": 2, "dead_lettered orders.nowhere": 1, "rejected elsewhere": 2, "dead_lettered elsewhere": 1,
	} {
		if told[event] != n {
			t.Errorf("%s: got %d notices, want %d, of %v", event, told[event], n, told)
		}
	}
	series := func(name string) map[string]int { return countsBy(t, live, name, "routing_key") }
	await.Until(t, "the notices are counted", func() bool {
		r, err := live.Read(t.Context())
		return err == nil && r.Value("cdc_relay_event_notices_total") == 7
	})
	if n := series("cdc_relay_messages_published_total"); n["orders.created"] != 1 {
		t.Errorf("published: %v", n)
	}
	for _, name := range []string{"cdc_relay_messages_dead_lettered_total", "cdc_relay_messages_refused_total"} {
		if n := series(name); n["orders.nowhere"] < 1 || n["other"] < 1 || len(n) != 2 {
			t.Errorf("%s: %v", name, n)
		}
	}
	relay.stopsWell(t)
	lines := make(map[string]int)
	for line := range relay.lines {
		for _, message := range []string{"message rejected", "message dead-lettered"} {
			if strings.Contains(line, message) && strings.Contains(line, "orders.nowhere") {
				lines[message]++
				if !strings.Contains(line, `"request_id":"r-7","traceparent":"12"`) || strings.Contains(line, "s3cr3t") {
					t.Errorf("headers in %s", line)
				}
			}
		}
	}
	if lines["message rejected"] != 1 || lines["message dead-lettered"] != 1 {
		t.Errorf("log lines: %v", lines)
	}
}

// Run creates the slot of a new outbox, and warns only if a slot is missing later.
func TestTheFirstSlotIsNotLoggedAsALoss(t *testing.T) {
	t.Parallel()
	env, db := fresh(t)
	env["CDC_RELAY_AMQP_URL"] = services.VHost(t)
	want(t, cdcRelay(t, env, "setup", "--mode", "poll"), exitDone) // no slot
	wantLevel := func(level string, events ...string) {
		relay := start(t, env, "run", "--log-format", "json")
		for _, event := range events {
			if line := relay.await(t, `"`+event+`"`); !strings.Contains(line, `"level":"`+level+`"`) {
				t.Errorf("want %s: %s", level, line)
			}
		}
		relay.await(t, `"streaming"`)
		relay.stopsWell(t)
	}
	wantLevel("INFO", "publication_recreated", "slot_created")
	execute(t, db, "INSERT INTO outbox (routing_key, payload) VALUES ('nowhere', '1')")
	await.Until(t, "the server has released the slot", func() bool {
		_, err := db.Exec(t.Context(), "SELECT pg_drop_replication_slot($1)", env["CDC_RELAY_SLOT"])
		return err == nil
	})
	wantLevel("WARN", "slot_created")
}

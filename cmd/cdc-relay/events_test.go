package main

import (
	"encoding/json"
	"maps"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

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

// datagrams reads lines from a UDP socket until one begins with the text, and returns them without their tags.
func datagrams(t *testing.T, conn net.PacketConn, until string) (lines []string) {
	t.Helper()
	must(t, conn.SetReadDeadline(time.Now().Add(await.Hang())))
	packet := make([]byte, 1<<16)
	for !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, until) }) {
		n, _, err := conn.ReadFrom(packet)
		if err != nil {
			t.Fatalf("%v; got\n%s", err, strings.Join(lines, "\n"))
		}
		for line := range strings.Lines(string(packet[:n])) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// listenForStatsd stands for the agent of DogStatsD, until the test ends.
func listenForStatsd(t *testing.T) net.PacketConn {
	t.Helper()
	conn, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// The last counts are sent when the relay stops.
func TestMetricsReachDogStatsD(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"run", "drain"} {
		t.Run(command, func(t *testing.T) {
			conn := listenForStatsd(t)
			env, db := fresh(t)
			env["CDC_RELAY_AMQP_URL"] = services.VHost(t)
			env["CDC_RELAY_STATSD_ADDR"] = conn.LocalAddr().String() + "?prefix=shop&tags=env:test, team:shop"
			want(t, cdcRelay(t, env, "setup"), exitDone)
			execute(t, db, `INSERT INTO outbox (routing_key, payload) SELECT 'nowhere', '1' FROM generate_series(1, 7)`)
			relay := start(t, env, command, "--max-retries", "0")
			if command == "run" {
				for range 7 {
					relay.await(t, "message dead-lettered")
				}
				relay.signal(t, syscall.SIGTERM)
			}
			if code := relay.exit(t); code != exitDone {
				t.Errorf("exit code %d", code)
			}
			got := datagrams(t, conn, "shop.messages_dead_lettered:7|c|#env:test,team:shop")
			got = append(got, datagrams(t, conn, "shop.stream_connected:0|g")...)
			if !slices.ContainsFunc(got, func(l string) bool {
				return strings.HasPrefix(l, "shop.messages_refused:7|c|#env:test,team:shop,reason:unroutable")
			}) {
				t.Errorf("no rejections among\n%s", strings.Join(got, "\n"))
			}
		})
	}
}

// arrivals declares a queue, binds it to an exchange of that name if there is one, and consumes it.
func arrivals(t *testing.T, url, queue, exchange string) <-chan amqp.Delivery {
	t.Helper()
	channel := connectToBroker(t, url)
	_, err := channel.QueueDeclare(queue, false, false, false, false, nil)
	must(t, err)
	if exchange != "" {
		must(t, channel.ExchangeDeclare(exchange, "fanout", false, false, false, false, nil))
		must(t, channel.QueueBind(queue, "", exchange, false, nil))
	}
	arrived, err := channel.Consume(queue, "", true, true, false, false, nil)
	must(t, err)
	return arrived
}

// The notice arrives when the row is in the dead-letter table. If nobody consumes it, the relay continues.
func TestEventNoticesArePublished(t *testing.T) {
	t.Parallel()
	env, db := withTables(t)
	env["CDC_RELAY_AMQP_URL"] = services.VHost(t)
	notices := arrivals(t, env["CDC_RELAY_AMQP_URL"], "graves", "graveyard")
	execute(t, db, `INSERT INTO outbox (routing_key, payload) SELECT 'nowhere', '1' FROM generate_series(1, 3)`)
	relay := start(t, env, "drain", "--max-retries", "0", "--events-exchange", "graveyard")
	for range 3 {
		var told struct {
			ID     int64
			Reason string
		}
		must(t, json.Unmarshal(await.Receive(t, "a notice comes", notices).Body, &told))
		reason := query[string](t, db, `SELECT failure_reason FROM outbox_dead_letter WHERE id = $1`, told.ID)
		if reason != told.Reason {
			t.Errorf("the notice is %+v, the table has %q", told, reason)
		}
	}
	if code := relay.exit(t); code != exitDone {
		t.Errorf("exit code %d", code)
	}
}

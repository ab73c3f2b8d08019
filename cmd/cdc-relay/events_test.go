package main

import (
	"encoding/json"
	"maps"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// countsBy returns a counter of a relay by the values of a label.
func countsBy(t *testing.T, relay, name, label string) map[string]int {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(strings.TrimPrefix(page(t, relay+"/metrics"), "200 ")))
	must(t, err)
	counts := make(map[string]int)
	for _, m := range families[name].GetMetric() {
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
	live := relay.httpURL(t)
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
		sum := 0
		for _, n := range countsBy(t, live, "cdc_relay_event_notices_total", "outcome") {
			sum += n
		}
		return sum == 7
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
				if message == "message rejected" && !strings.Contains(line, "; to try again at once: cdc-relay resend ") {
					t.Errorf("no command in %s", line)
				}
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

// The last counts are sent when the relay stops.
func TestMetricsReachDogStatsD(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"run", "drain"} {
		t.Run(command, func(t *testing.T) {
			conn, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
			must(t, err)
			defer conn.Close()
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
			relay.ends(t, exitDone)
			must(t, conn.SetReadDeadline(time.Now().Add(await.Hang())))
			got, packet := "", make([]byte, 1<<16)
			for _, line := range []string{
				"shop.messages_dead_lettered:7|c|#env:test,team:shop", "shop.messages_refused:7|c|#env:test,team:shop,reason:unroutable", "shop.stream_connected:0|g",
			} {
				for !strings.Contains(got, line) {
					n, _, err := conn.ReadFrom(packet)
					if err != nil {
						t.Fatalf("%v; no %s in\n%s", err, line, got)
					}
					got += string(packet[:n])
				}
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

// All tasks of a Celery queue have one routing key. The setting comes from the environment, as that of all commands.
func TestTasksOfOneQueueAreToldApart(t *testing.T) {
	t.Parallel()
	env, db := fresh(t)
	env["CDC_RELAY_AMQP_URL"], env["CDC_RELAY_METRICS_HEADER"] = services.VHost(t), "task"
	arrived := arrivals(t, env["CDC_RELAY_AMQP_URL"], "celery", "")
	want(t, cdcRelay(t, env, "setup"), exitDone)
	relay := start(t, env, "run", "--max-retries", "1", "--backoff-time", "0s", "--poll-interval", "100ms")
	live := relay.httpURL(t)
	execute(t, db, `INSERT INTO outbox (routing_key, payload, headers) SELECT key, '1', headers FROM (VALUES
		('celery', '{"id": "1", "task": "orders.send", "argsrepr": "(\"task\": \"no\")"}'::jsonb), ('celery', '{"task": "orders.send"}'), ('celery', '{"task": "mails.send"}'),
		('celery', NULL), ('gone', '{"task": "orders.send"}'), ('gone', '{"task": "orders.send"}'), ('gone', '{"task": "orders.tasks.pay"}'),
		('gone', '{"task": "evil\"\n\u001b[31m<b>"}'), ('gone', jsonb_build_object('task', repeat('x', 10000)))) v(key, headers)`)
	for range 4 {
		await.Receive(t, "a message arrives", arrived)
	}
	series := func(name string) map[string]int { return countsBy(t, live, name, "task") }
	dead := map[string]int{"orders.send": 2, "orders.tasks.pay": 1, `evil"??[31m<b>`: 1, "other": 1, "": 0}
	await.Until(t, "all dead letters are counted", func() bool { return maps.Equal(series("cdc_relay_messages_dead_lettered_total"), dead) }, func() string {
		text, _ := json.Marshal(series("cdc_relay_messages_dead_lettered_total"))
		return string(text)
	})
	if got := series("cdc_relay_messages_published_total"); !maps.Equal(got, map[string]int{"orders.send": 2, "mails.send": 1, "": 1}) {
		t.Errorf("published: %v", got)
	}
	if got := series("cdc_relay_messages_refused_total"); got["orders.send"] != 4 {
		t.Errorf("rejected: %v", got)
	}
	relay.stopsWell(t)

	wantOutput(t, cdcRelay(t, env, "stats"), "also: 5 dead letters: 5 unroutable", "ROUTING KEY  TASK ", "gone         orders.send ", `evil"\n\x1b[31m<b>`, "xxxxx…")
	var stats struct {
		TopFailing []struct{ Header *string } `json:"top_failing"`
	}
	if r := cdcRelay(t, env, "stats", "--json"); json.Unmarshal([]byte(r.stdout), &stats) != nil || len(stats.TopFailing) != 4 || *stats.TopFailing[0].Header != "orders.send" {
		t.Errorf("got %s%s", r.stdout, r.stderr)
	}
	if r := cdcRelay(t, env, "stats", "--metrics-header", "", "--json"); !strings.Contains(r.stdout, `"header": null`) || strings.Contains(r.stdout, "orders.send") {
		t.Errorf("without a header: %s%s", r.stdout, r.stderr)
	}
	wantOutput(t, cdcRelay(t, env, "list", "--state", "dead", "--header", "task=#.pay"), "ROUTING KEY  TASK              ORDERING KEY", "gone         orders.tasks.pay  -")
	execute(t, db, `INSERT INTO outbox (routing_key, payload, headers) VALUES ('later', '1', '{"task": 17}'), ('later', '1', '{"task": ["a"]}')`)
	wantOutput(t, cdcRelay(t, env, "list"), "ROUTING KEY  TASK  ORDERING KEY", "later        17    -", "later        -     -")
	wantOutput(t, cdcRelay(t, env, "list", "--metrics-header", ""), "ROUTING KEY  ORDERING KEY", "later        -")
	wantOutput(t, cdcRelay(t, env, "resend", "--state", "dead", "--header", "task=orders.#", "--dry-run"), "3 dead letters")
	wantOutput(t, cdcRelay(t, env, "delete", "--state", "dead", "--header", "task=orders.send", "--header", "id=#", "--dry-run"), "0 dead letters")
}

func TestHeadersThatMakeNoLabelAreRejected(t *testing.T) {
	env, _ := fresh(t)
	env["CDC_RELAY_PUBLISHER"] = "stdout"
	for header, says := range map[string]string{
		"routing_key": "the label routing_key has another meaning", "routing-key": "the label routing_key has another meaning", "-": "want a letter or a digit",
		"a\nb": "want printable characters", strings.Repeat("x", 10_000): "want at most 255 bytes", "argsrepr": "repeats the body",
	} {
		for _, command := range [][]string{{"run"}, {"drain"}, {"stats"}, {"console"}, {"config", "validate"}} {
			r := cdcRelay(t, env, append(command, "--metrics-header", header)...)
			if want(t, r, exitUsage); !strings.Contains(r.stderr, says) || len(r.stderr) > 1000 {
				t.Errorf("%v %.50q: %s", command, header, r.stderr)
			}
		}
	}
	for _, flag := range []string{"--header-columns", "--ordering-key-header"} {
		if r := cdcRelay(t, env, "run", flag, "tenant", "--metrics-header", "tenant"); r.code != exitUsage || !strings.Contains(r.stderr, "another column") {
			t.Errorf("%s: exit code %d, %s", flag, r.code, r.stderr)
		}
	}
	for _, filter := range []string{"", "task", "=x", "argsrepr=*"} {
		want(t, cdcRelay(t, env, "list", "--header", filter), exitUsage)
	}
}

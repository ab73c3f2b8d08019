package main

import (
	"encoding/json"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

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

// Its values are the keys named by --metrics-routing-keys, and "other" for the rest.
func TestDogStatsDHasATagForRoutingKeys(t *testing.T) {
	t.Parallel()
	conn := listenForStatsd(t)
	env, db := withTables(t)
	env["CDC_RELAY_PUBLISHER"], env["CDC_RELAY_STATSD_ADDR"] = "stdout", conn.LocalAddr().String()
	execute(t, db, `INSERT INTO outbox (routing_key, payload) SELECT CASE WHEN i <= 2 THEN 'orders.created' ELSE 'invoices.' || i END, '1'
		FROM generate_series(1, 5) i`)
	want(t, cdcRelay(t, env, "drain", "--metrics-routing-keys", "orders.*,paid"), exitDone)
	got := datagrams(t, conn, "cdc_relay.messages_published:3|c|#routing_key:other") // the last of them
	if !slices.ContainsFunc(got, func(l string) bool {
		return strings.HasPrefix(l, "cdc_relay.messages_published:2|c|#routing_key:orders.created")
	}) {
		t.Errorf("no counter of orders.created among\n%s", strings.Join(got, "\n"))
	}
}

// arrivals declares a queue, binds it to an exchange of that name if there is one, and consumes it.
func arrivals(t *testing.T, url, queue, exchange string) <-chan amqp.Delivery {
	t.Helper()
	conn := services.DialAMQP(t, url)
	channel, err := conn.Channel()
	must(t, err)
	if _, err := channel.QueueDeclare(queue, false, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
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

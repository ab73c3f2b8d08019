package e2e

import (
	"reflect"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// It has exactly the documented fields.
func TestTheSmallestMessageArrivesAsDocumented(t *testing.T) {
	t.Parallel()
	w, arrived := consuming(t)
	w.run()
	id := w.insert(row{"payload": `{"order_id": 42}`, "created_at": time.Date(2024, 2, 29, 23, 59, 58, 999_000_000, time.UTC)})
	d := w.await(arrived, id)
	if string(d.Body) != `{"order_id": 42}` {
		t.Errorf("body %q", d.Body)
	}
	if want := time.Date(2024, 2, 29, 23, 59, 58, 0, time.UTC); !d.Timestamp.Equal(want) {
		t.Errorf("timestamp %s, want created_at %s", d.Timestamp, want)
	}
	if d.DeliveryMode != amqp.Persistent || d.ContentType != "application/json" {
		t.Errorf("delivery mode %d, content type %q", d.DeliveryMode, d.ContentType)
	}
	if d.Exchange != "" || d.RoutingKey != w.queue || d.Redelivered {
		t.Errorf("from exchange %q with routing key %q, redelivered %t", d.Exchange, d.RoutingKey, d.Redelivered)
	}
	if len(d.Headers) != 0 {
		t.Errorf("headers %v on a row that has none, and was not published before", d.Headers)
	}
	if d.ContentEncoding+d.CorrelationId+d.ReplyTo+d.Expiration+d.Type+d.UserId+d.AppId != "" || d.Priority != 0 {
		t.Errorf("properties that nobody set: %+v", d)
	}
	binary := w.await(arrived, w.insert(row{"payload_bytes": []byte{0, 255}}))
	if binary.ContentType != "application/octet-stream" || string(binary.Body) != "\x00\xff" {
		t.Errorf("binary: content type %q, body %q", binary.ContentType, binary.Body)
	}
}

// Each has the value from the row.
func TestEveryPropertyArrives(t *testing.T) {
	t.Parallel()
	w, arrived := consuming(t)
	w.run()
	login := mustURL(t, w.broker).User.Username()
	d := w.await(arrived, w.insert(row{
		"properties": `{"content_type": "application/cloudevents+json", "content_encoding": "identity", "correlation_id": "c-1",
			"reply_to": "replies", "expiration": "60000", "priority": 9, "type": "order.created", "user_id": "` + login + `",
			"app_id": "shop", "delivery_mode": 1}`,
		"headers": `{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "baggage": "a=b,c=d"}`,
	}))
	got := map[string]any{
		"content_type": d.ContentType, "content_encoding": d.ContentEncoding, "correlation_id": d.CorrelationId,
		"reply_to": d.ReplyTo, "expiration": d.Expiration, "priority": d.Priority, "type": d.Type, "user_id": d.UserId,
		"app_id": d.AppId, "delivery_mode": d.DeliveryMode, "headers": d.Headers,
	}
	want := map[string]any{
		"content_type": "application/cloudevents+json", "content_encoding": "identity", "correlation_id": "c-1",
		"reply_to": "replies", "expiration": "60000", "priority": uint8(9), "type": "order.created", "user_id": login,
		"app_id": "shop", "delivery_mode": uint8(1), "headers": amqp.Table{
			"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "baggage": "a=b,c=d",
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	number := w.await(arrived, w.insert(row{"properties": `{"expiration": 60000, "content_type": "text/plain"}`, "payload_bytes": []byte("x")}))
	if number.Expiration != "60000" || number.ContentType != "text/plain" {
		t.Errorf("expiration %q, content type %q", number.Expiration, number.ContentType)
	}
}

// This is the row's own exchange, or else the relay's --exchange.
func TestMessagesGoToTheirExchange(t *testing.T) {
	t.Parallel()
	w := newWorld(t).setUp()
	const weird = `a.*.#/"ä€𝄞" '\ %`
	for _, exchange := range []string{w.queue + "default", w.queue + "own ü"} {
		w.bindExchange(exchange, "topic", w.queue, "#")
	}
	arrived := w.consume(w.queue)
	w.run("--exchange", w.queue+"default")
	for _, c := range []struct {
		row      row
		exchange string
		key      string
	}{
		{row{"routing_key": "a.b"}, w.queue + "default", "a.b"},
		{row{"routing_key": "a.b", "exchange": w.queue + "own ü"}, w.queue + "own ü", "a.b"},
		{row{"routing_key": w.queue, "exchange": ""}, "", w.queue},
		{row{"routing_key": ""}, w.queue + "default", ""},
		{row{"routing_key": weird}, w.queue + "default", weird},
		{row{"routing_key": "tab\tnewline\nreturn\r"}, w.queue + "default", "tab\tnewline\nreturn\r"},
		{row{"routing_key": strings.Repeat("€", 85)}, w.queue + "default", strings.Repeat("€", 85)},
	} {
		if d := w.await(arrived, w.insert(c.row)); d.Exchange != c.exchange || d.RoutingKey != c.key {
			t.Errorf("%v arrived from exchange %q with routing key %q", c.row, d.Exchange, d.RoutingKey)
		}
	}
}

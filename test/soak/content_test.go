package soak

import (
	"maps"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

func TestContentIsWhatMustNotChange(t *testing.T) {
	arrived := amqp.Delivery{
		MessageId: outbox.UUID{1}.String(), Exchange: "soak.topic", RoutingKey: "a.b", Body: []byte(`{"n": 1}`),
		ContentType: "application/json", DeliveryMode: 2, Priority: 3, Expiration: "60000", Type: "order",
		Timestamp: time.Unix(1, 0), Headers: amqp.Table{"n": int64(1), "l": []any{int64(1), amqp.Table{"x": nil}}},
	}
	want := history.Delivery{Message: outbox.UUID{1}, Queue: "q", Content: content(&arrived)}
	for what, change := range map[string]func(*amqp.Delivery){
		"mark": func(d *amqp.Delivery) {
			d.Headers[outbox.PossibleDuplicateHeader], d.Headers["x-delivery-count"] = true, int64(1)
		},
		"another timestamp": func(d *amqp.Delivery) { d.Timestamp, d.Redelivered = time.Unix(2, 0), true },
		"no timestamp":      func(d *amqp.Delivery) { d.Timestamp = time.Time{} },
		"message id":        func(d *amqp.Delivery) { d.MessageId = "" },
		"body":              func(d *amqp.Delivery) { d.Body = []byte(`{"n":1}`) },
		"exchange":          func(d *amqp.Delivery) { d.Exchange = "" },
		"routing key":       func(d *amqp.Delivery) { d.RoutingKey = "a.c" },
		"header":            func(d *amqp.Delivery) { d.Headers["n"] = int64(0) },
		"nested header":     func(d *amqp.Delivery) { d.Headers["l"] = []any{int64(1), amqp.Table{}} },
		"more headers":      func(d *amqp.Delivery) { d.Headers["more"] = "x" },
		"priority":          func(d *amqp.Delivery) { d.Priority = 0 },
		"delivery mode":     func(d *amqp.Delivery) { d.DeliveryMode = 1 },
		"content type":      func(d *amqp.Delivery) { d.ContentType = "text/plain" },
	} {
		changed := arrived
		changed.Headers = maps.Clone(arrived.Headers)
		change(&changed)
		got, expected := delivery(&changed, "q"), want
		expected.Marked, expected.Redelivered = what == "mark", what == "another timestamp"
		if same := expected.Marked || expected.Redelivered; same != (got == expected) {
			t.Errorf("%s: %+v", what, got)
		}
	}
}

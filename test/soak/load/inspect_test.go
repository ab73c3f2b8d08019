package load

import (
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

// arrived returns a row as a consumer should receive it.
func arrived(t *testing.T, kind history.Kind) amqp.Delivery {
	t.Helper()
	topic := "soak.topic"
	r := row{
		Message: history.Message{ID: outbox.UUID{1}, Kind: kind, Key: "k", Seq: 3}, exchange: &topic, routingKey: "a.b",
		headers:    `{"n": -9007199254740993, "f": 0.5, "l": [1, [], {"x": null}], "s": "é", "t": true}`,
		properties: `{"priority": 3, "expiration": 60000, "type": "order"}`, fill: 1000, fillSeed: 5,
	}
	write, contentType := jsonBody, "application/json"
	if kind == history.Binary {
		write, contentType = binaryBody, "application/octet-stream"
	}
	body, err := write(aboutRow("run", &r), r.fill, r.fillSeed)
	if err != nil {
		t.Fatal(err)
	}
	return amqp.Delivery{
		MessageId: r.ID.String(), Exchange: topic, RoutingKey: "a.b", Body: body, ContentType: contentType,
		DeliveryMode: 2, Priority: 3, Expiration: "60000", Type: "order", Timestamp: time.Unix(1, 0),
		Headers: amqp.Table{
			"n": int64(-9007199254740993), "f": 0.5, "l": []any{int64(1), []any{}, amqp.Table{"x": nil}},
			"s": "é", "t": true,
			"x-delivery-count": int64(1), outbox.PossibleDuplicateHeader: true,
		},
	}
}

func TestInspectAcceptsUnchangedMessages(t *testing.T) {
	for _, kind := range []history.Kind{history.Plain, history.Binary} {
		d := arrived(t, kind)
		before := inspect(&d, "q").Content
		delete(d.Headers, outbox.PossibleDuplicateHeader)
		unmarked := inspect(&d, "q")
		d.Headers[outbox.PossibleDuplicateHeader], d.Redelivered, d.Timestamp = true, true, time.Unix(2, 0)
		got := inspect(&d, "q")
		if unmarked.Content != before || got.Content != before {
			t.Errorf("%s: the content depends on the mark or the time", kind)
		}
		got.Content = ""
		if got != (history.Delivery{Message: outbox.UUID{1}, Queue: "q", Marked: true, Redelivered: true}) {
			t.Errorf("%s: %+v", kind, got)
		}
	}
}

func TestInspectNamesTheDamage(t *testing.T) {
	for _, kind := range []history.Kind{history.Plain, history.Binary} {
		undamaged := arrived(t, kind)
		intact := inspect(&undamaged, "q").Content
		for want, harm := range map[string]func(*amqp.Delivery){
			"message-id is":        func(d *amqp.Delivery) { d.MessageId = "" },
			"message-id":           func(d *amqp.Delivery) { d.MessageId = outbox.UUID{2}.String() },
			"checksum":             func(d *amqp.Delivery) { d.Body[len(d.Body)/2] ^= 1 },
			"body":                 func(d *amqp.Delivery) { d.Body = d.Body[:len(d.Body)-1] },
			"body has 0 bytes":     func(d *amqp.Delivery) { d.Body = nil },
			"exchange":             func(d *amqp.Delivery) { d.Exchange = "" },
			"routing key":          func(d *amqp.Delivery) { d.RoutingKey = "a.c" },
			"timestamp":            func(d *amqp.Delivery) { d.Timestamp = time.Time{} },
			`header "n"`:           func(d *amqp.Delivery) { d.Headers["n"] = int32(0) },
			`header "f"`:           func(d *amqp.Delivery) { delete(d.Headers, "f") },
			`header "l"`:           func(d *amqp.Delivery) { d.Headers["l"] = []any{int64(1)} },
			`header "more"`:        func(d *amqp.Delivery) { d.Headers["more"] = "x" },
			"property priority":    func(d *amqp.Delivery) { d.Priority = 0 },
			"property expiration":  func(d *amqp.Delivery) { d.Expiration = "" },
			"property delivery_m":  func(d *amqp.Delivery) { d.DeliveryMode = 1 },
			"property content_typ": func(d *amqp.Delivery) { d.ContentType = "text/plain" },
			"property app_id":      func(d *amqp.Delivery) { d.AppId = "x" },
		} {
			d := arrived(t, kind)
			harm(&d)
			got := inspect(&d, "q")
			if !strings.Contains(got.Damaged, want) || got.Content == intact && want != "timestamp" {
				t.Errorf("%s, %s: %q, content %s", kind, want, got.Damaged, got.Content)
			}
		}
	}
}

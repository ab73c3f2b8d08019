package soak

import (
	"fmt"
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

func TestEveryFaultIsPlanned(t *testing.T) {
	var all []Fault
	for _, side := range []string{"relay", "postgres", "rabbitmq"} {
		for i := range 5 {
			all = append(all, Fault{Name: fmt.Sprintf("%s-%d", side, i)})
		}
	}
	for _, overlap := range []float64{0, 0.5, 1} {
		p := newDeck(&Options{Seed: 3, Faults: all, Hold: time.Second, Overlap: overlap})
		seen := make(map[string]int)
		for planned := 0; planned < 10*len(all); {
			for _, f := range p.next() {
				planned++
				seen[f.fault.Name]++
			}
		}
		for _, f := range all {
			if seen[f.Name] != 10 {
				t.Errorf("overlap %g: %s is planned %d times of 10", overlap, f.Name, seen[f.Name])
			}
		}
	}
}

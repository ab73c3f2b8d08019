package load

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

// The headers of another program are its own affair; the address and the body are not.
func TestOnlyTheBodyIsCompared(t *testing.T) {
	for want, change := range map[bool]func(*amqp.Delivery){
		true:  func(d *amqp.Delivery) { d.Headers, d.ContentType, d.Priority = amqp.Table{"x": "y"}, "", 0 },
		false: func(d *amqp.Delivery) { d.RoutingKey = "elsewhere" },
	} {
		d := arrived(t, history.Plain)
		change(&d)
		if got := inspect(&d, "q", true); (got.Damaged == "") != want {
			t.Errorf("undamaged: want %t, got %q", want, got.Damaged)
		}
	}
}

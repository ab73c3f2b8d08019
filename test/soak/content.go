package soak

import (
	"fmt"
	"hash/fnv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

// delivery is what the history records of an arrival.
func delivery(d *amqp.Delivery, queue string) history.Delivery {
	id, _ := outbox.ParseUUID([]byte(d.MessageId)) // no message has the zero id
	return history.Delivery{
		Message: id, Queue: queue, Marked: d.Headers[outbox.PossibleDuplicateHeader] == true,
		Redelivered: d.Redelivered, Content: content(d),
	}
}

// content describes everything of a message that the relay, its settings and faults must not change. The writers
// compute it of what they insert, the consumers of what arrives.
func content(d *amqp.Delivery) string {
	headers := amqp.Table{}
	for name, value := range d.Headers {
		if !strings.HasPrefix(name, "x-") { // the relay's mark, and headers that brokers add, such as x-delivery-count
			headers[name] = value
		}
	}
	sum := fnv.New64a()
	_, _ = sum.Write(d.Body) // never fails
	return fmt.Sprintf("to %q %q, %q %q %q %q %q %q %q %q priority %d mode %d timestamp %t, %#v, %d bytes %016x",
		d.Exchange, d.RoutingKey, d.ContentType, d.ContentEncoding, d.CorrelationId, d.ReplyTo, d.Expiration, d.Type,
		d.AppId, d.UserId, d.Priority, d.DeliveryMode, !d.Timestamp.IsZero(), headers, len(d.Body), sum.Sum64())
}

package amqp

import (
	"bytes"
	"reflect"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish/wire"
)

// match notes a return at its entry. RabbitMQ returns the message, but not its number on the channel. A return without
// an entry belongs to a message that timed out.
func (r *reaper) match(l *lane, returned *amqp091.Return) {
	id, err := outbox.ParseUUID([]byte(returned.MessageId))
	if err != nil {
		return
	}
	var first *entry
	for _, e := range r.pending {
		if e == nil {
			continue // just settled
		}
		m := e.message
		if e.lane != l || e.returned != nil || m.MessageID != id ||
			m.RoutingKey != returned.RoutingKey || r.limits.ExchangeOf(m) != returned.Exchange {
			continue
		}
		if first == nil {
			first = e
		}
		// Several rows may be equal in all of these; the headers may tell them apart.
		if sameContent(e, returned, r.limits) {
			first = e
			break
		}
	}
	if first != nil {
		first.returned = returned
	}
}

func sameContent(e *entry, returned *amqp091.Return, limits wire.Limits) bool {
	if !bytes.Equal(e.message.Payload, returned.Body) {
		return false
	}
	p, err := wire.Encode(e.message, limits, e.marked)
	none := len(p.Headers)+len(returned.Headers) == 0
	return err == nil && (none || reflect.DeepEqual(table(p.Headers), returned.Headers))
}

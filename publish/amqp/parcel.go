package amqp

import (
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish/wire"
)

// parcel is a message as the library takes it.
type parcel struct {
	exchange, key string
	body          amqp091.Publishing
	// marked: it has the header x-possible-duplicate.
	marked bool
	// risky: the broker may close the channel because of this message, although it is well-formed.
	risky bool
}

func (s *session) encode(m *outbox.Message, possibleDuplicate bool) (parcel, error) {
	p, err := wire.Encode(m, s.limits, possibleDuplicate)
	if err != nil {
		return parcel{}, err
	}
	return parcel{
		exchange: p.Exchange, key: p.Key, marked: possibleDuplicate, risky: s.risky(&p),
		body: amqp091.Publishing{
			Headers: table(p.Headers), ContentType: p.ContentType, ContentEncoding: p.ContentEncoding,
			DeliveryMode: p.DeliveryMode, Priority: p.Priority, CorrelationId: p.CorrelationID, ReplyTo: p.ReplyTo,
			Expiration: p.Expiration, MessageId: p.MessageID, Timestamp: p.Timestamp, Type: p.Type,
			UserId: p.UserID, AppId: p.AppID, Body: p.Body,
		},
	}, nil
}

// table gives an object the library's type, and the objects in it.
func table(object map[string]any) amqp091.Table {
	for name, value := range object {
		switch value.(type) {
		case map[string]any, []any:
			object[name] = field(value)
		}
	}
	return object
}

func field(value any) any {
	switch v := value.(type) {
	case map[string]any:
		return table(v)
	case []any:
		for i, element := range v {
			v[i] = field(element)
		}
	}
	return value
}

// risky reports whether the broker may reject the message by its own rules: it compares user_id with the login, routes
// to CC and BCC, and limits bodies (max_message_size, 16 MiB since RabbitMQ 4.0).
func (s *session) risky(p *wire.Parcel) bool {
	const common = 16 << 20
	size, rejected := len(p.Body), s.tooLarge.Load()
	_, cc := p.Headers["CC"]
	_, bcc := p.Headers["BCC"]
	return cc || bcc || p.UserID != "" && p.UserID != s.node.URI.Username ||
		size > common || rejected > 0 && int64(size) >= rejected
}

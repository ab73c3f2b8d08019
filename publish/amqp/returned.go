package amqp

import (
	"hash/maphash"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// content is the hash of a message as the broker returns it: exchange, routing key, properties, headers and body.
// Messages of equal content are interchangeable: it does not matter which of them a return is for.
type content uint64

// contents hashes contents.
type contents struct{ seed maphash.Seed }

func newContents() contents { return contents{maphash.MakeSeed()} }

// of leaves out what RabbitMQ itself changes: it removes BCC, and its interceptors of messages set the timestamp and
// two headers.
func (c contents) of(exchange, key string, p *amqp091.Publishing) content {
	mode, priority := p.DeliveryMode, p.Priority
	if mode&zeroPriority != 0 {
		mode, priority = mode&^zeroPriority, 0
	}
	h := maphash.Comparable(c.seed, [...]string{
		exchange, key, p.MessageId, p.ContentType, p.ContentEncoding, p.CorrelationId, p.ReplyTo, p.Expiration, p.Type,
		p.UserId, p.AppId, string([]byte{mode, priority}),
	})
	h = h*31 + maphash.Bytes(c.seed, p.Body)
	for name, value := range p.Headers {
		switch name {
		case "BCC", "timestamp_in_ms", "x-routed-by":
		default:
			h += c.field(name, value)
		}
	}
	return content(h)
}

// field hashes a header, so that their sum does not depend on their order. The library reads an empty array as nil.
func (c contents) field(name string, value any) uint64 {
	h := maphash.String(c.seed, name)
	switch v := value.(type) {
	case amqp091.Table:
		for name, value := range v {
			h += c.field(name, value)
		}
	case []any:
		for _, element := range v {
			h = h*31 + c.field("", element)
		}
	default:
		h = h*31 + maphash.Comparable(c.seed, value)
	}
	return h * h
}

// returned has the returns of a lane that belong to no message yet, and its unanswered messages by their content.
type returned struct {
	contents
	unanswered map[content]int
	unclaimed  map[content][]*amqp091.Return
}

func newReturned() *returned {
	return &returned{
		contents:   newContents(),
		unanswered: make(map[content]int), unclaimed: make(map[content][]*amqp091.Return),
	}
}

// sent records an unanswered message. A lane without returns has no record: most lanes never need one.
func (r *returned) sent(e *entry) {
	if r != nil {
		e.content = r.of(e.parcel.exchange, e.parcel.key, &e.parcel.body)
		r.unanswered[e.content]++
	}
}

// add records a return. It reports false if no unanswered message has its content.
func (r *returned) add(one *amqp091.Return) bool {
	of := r.of(one.Exchange, one.RoutingKey, &amqp091.Publishing{
		Headers: one.Headers, ContentType: one.ContentType, ContentEncoding: one.ContentEncoding,
		DeliveryMode: one.DeliveryMode, Priority: one.Priority, CorrelationId: one.CorrelationId, ReplyTo: one.ReplyTo,
		Expiration: one.Expiration, MessageId: one.MessageId, Type: one.Type, UserId: one.UserId, AppId: one.AppId,
		Body: one.Body,
	})
	if r.unanswered[of] <= len(r.unclaimed[of]) {
		return false
	}
	r.unclaimed[of] = append(r.unclaimed[of], one)
	return true
}

// answered returns the return of a message that has its answer now; nil: there is none.
func (r *returned) answered(e *entry) (one *amqp091.Return) {
	if r == nil {
		return nil
	}
	if r.unanswered[e.content]--; r.unanswered[e.content] == 0 {
		delete(r.unanswered, e.content)
	}
	switch all := r.unclaimed[e.content]; len(all) {
	case 0:
		return nil
	case 1:
		delete(r.unclaimed, e.content)
		return all[0]
	default:
		r.unclaimed[e.content] = all[1:]
		return all[0]
	}
}

// takeReturns records the returns of a lane. RabbitMQ returns the message, but not its number on the channel. If
// somebody on the way has changed it, each unanswered message with its message_id counts as returned: none is lost. A
// return without any belongs to a message that timed out.
func (s *session) takeReturns(l *lane) {
	for {
		var one amqp091.Return
		select {
		case one = <-l.returns: // closed: without a message_id
		default:
		}
		if one.MessageId == "" {
			return
		}
		mine := func(e *entry) bool { return e != nil && e.lane == l } // nil: just settled
		if l.returned == nil {
			l.returned = newReturned()
			for _, e := range s.pending {
				if mine(e) {
					l.returned.sent(e)
				}
			}
		}
		if l.returned.add(&one) {
			continue
		}
		for _, e := range s.pending {
			if mine(e) && e.parcel.body.MessageId == one.MessageId {
				e.returned = &one
			}
		}
	}
}

// Package wire has the forms in which a message leaves: of AMQP, and of a line of JSON.
package wire

import (
	"errors"
	"fmt"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// LongestShortString is AMQP's limit for short strings in bytes: routing keys, exchange names, header keys and most
// properties.
const LongestShortString = 255

// defaultFrameMax is the frame size in bytes that RabbitMQ and the library use by default.
const defaultFrameMax = 131072

// frameOverhead is what AMQP adds to a frame's payload, in bytes.
const frameOverhead = 8

// duplicateHeaderSize is the encoded size of x-possible-duplicate: true. Each message keeps room for it, because it may
// have to be sent again.
const duplicateHeaderSize = 1 + len(outbox.PossibleDuplicateHeader) + 2

// Limits are the limits of one connection.
type Limits struct {
	// DefaultExchange is used for messages without an exchange.
	DefaultExchange string
	// FrameMax is the negotiated frame size in bytes; 0: unlimited.
	FrameMax int
	// Login is the user of the connection, the only user_id that is certainly accepted.
	Login string
}

// ExchangeOf returns the exchange of a message.
func (l Limits) ExchangeOf(m *outbox.Message) string {
	if m.Exchange != nil {
		return *m.Exchange
	}
	return l.DefaultExchange
}

// Parcel is a message in AMQP's form.
type Parcel struct {
	Exchange string
	Key      string
	Body     amqp091.Publishing
	// Marked: it has the header x-possible-duplicate.
	Marked bool
	// Risky: the broker may close the channel because of this message, although it is well-formed.
	Risky bool
}

// invalid says why a message can never be published.
type invalid struct {
	reason outbox.Reason
	detail string
}

func (e *invalid) Error() string { return e.detail }

// Impossible is the result of a message that Encode rejected.
func Impossible(m *outbox.Message, err error) outbox.Result {
	result := outbox.Result{
		Message: m, Outcome: outbox.Impossible, Reason: outbox.ReasonInvalidRow, Detail: err.Error(),
	}
	var bad *invalid
	if errors.As(err, &bad) {
		result.Reason = bad.reason
	}
	return result
}

// Encode converts a message to AMQP. Errors, always *invalid, are for messages that AMQP cannot carry; for some of them
// the library would close the whole connection.
//
// Encode drops the application's own x-possible-duplicate header, because only the relay knows the truth.
func Encode(m *outbox.Message, lim Limits, possibleDuplicate bool) (Parcel, error) {
	if reason, detail := m.Defect(time.Now()); reason != "" {
		return Parcel{}, &invalid{reason, detail}
	}
	p := Parcel{Exchange: lim.ExchangeOf(m), Key: m.RoutingKey, Marked: possibleDuplicate}
	p.Body = amqp091.Publishing{
		ContentType:  "application/json",
		DeliveryMode: amqp091.Persistent,
		MessageId:    m.MessageID.String(),
		Body:         m.Payload,
	}
	if m.Binary {
		p.Body.ContentType = "application/octet-stream"
	}
	// AMQP timestamps start in 1970.
	if m.CreatedAt.Unix() > 0 {
		p.Body.Timestamp = m.CreatedAt.Truncate(time.Second)
	}
	if len(m.Properties) > 0 {
		if err := applyProperties(&p.Body, m.Properties); err != nil {
			return Parcel{}, err
		}
	}
	if len(m.Headers) > 0 {
		headers, err := parseHeaders(m.Headers)
		if err != nil {
			return Parcel{}, err
		}
		delete(headers, outbox.PossibleDuplicateHeader)
		p.Body.Headers = headers
	}
	for _, h := range m.Extra {
		if p.Body.Headers == nil {
			p.Body.Headers = make(amqp091.Table, len(m.Extra))
		}
		if _, own := p.Body.Headers[h.Name]; !own {
			p.Body.Headers[h.Name] = h.Value
		}
	}
	if left, expires := m.TimeLeft(time.Now()); expires {
		limitExpiration(&p.Body, max(left, time.Millisecond))
	}
	if err := checkFrame(&p.Body, lim.FrameMax); err != nil {
		return Parcel{}, err
	}
	p.Risky = risky(&p.Body, lim)
	if possibleDuplicate {
		if p.Body.Headers == nil {
			p.Body.Headers = make(amqp091.Table, 1)
		}
		p.Body.Headers[outbox.PossibleDuplicateHeader] = true
	}
	return p, nil
}

// risky reports whether the broker may reject the message by its own rules: it compares user_id with the login, and
// routes to CC and BCC.
func risky(b *amqp091.Publishing, lim Limits) bool {
	if b.UserId != "" && b.UserId != lim.Login {
		return true
	}
	if len(b.Headers) == 0 {
		return false
	}
	_, cc := b.Headers["CC"]
	_, bcc := b.Headers["BCC"]
	return cc || bcc
}

// checkFrame limits the content header to one frame: for a larger one the broker closes the connection with 501.
func checkFrame(b *amqp091.Publishing, frameMax int) error {
	if frameMax <= 0 {
		return nil
	}
	headers := 0
	if len(b.Headers) > 0 {
		headers = tableSize(b.Headers)
	}
	size := propertiesSize(b) + headers + 4 + duplicateHeaderSize + frameOverhead
	if size <= frameMax {
		return nil
	}
	return &invalid{outbox.ReasonInvalidHeaders, fmt.Sprintf(
		"headers take %d bytes and the other properties %d, together %d more than RabbitMQ's frame_max of %d allows",
		headers, size-headers, size-frameMax, frameMax)}
}

// propertiesSize returns the size in bytes of the content header without the headers table. It may be too large, never
// too small.
func propertiesSize(b *amqp091.Publishing) int {
	const fixed = 2 + 2 + 8 + 2 + 1 + 1 + 8 // class, weight, body size, flags, delivery mode, priority, timestamp
	size := fixed
	for _, s := range [...]string{
		b.ContentType, b.ContentEncoding, b.CorrelationId, b.ReplyTo, b.Expiration,
		b.MessageId, b.Type, b.UserId, b.AppId,
	} {
		size += 1 + len(s)
	}
	return size
}

// tableSize returns the encoded size of a field table in bytes.
func tableSize(t amqp091.Table) int {
	size := 4
	for key, value := range t {
		size += 1 + len(key) + fieldSize(value)
	}
	return size
}

func fieldSize(value any) int {
	switch v := value.(type) {
	case nil:
		return 1
	case bool:
		return 2
	case string:
		return 5 + len(v)
	case amqp091.Table:
		return 1 + tableSize(v)
	case []any:
		size := 5
		for _, element := range v {
			size += fieldSize(element)
		}
		return size
	}
	return 9 // int64, float64
}

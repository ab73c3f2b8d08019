// Package wire checks messages and gives them the form in which any publisher can send them, also as a line of JSON.
// The limits are those of AMQP for all publishers.
package wire

import (
	"errors"
	"fmt"
	"time"

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
	// MostBody is the largest body, in bytes; 0: unknown.
	MostBody int
}

// ExchangeOf returns the exchange of a message.
func (l Limits) ExchangeOf(m *outbox.Message) string {
	if m.Exchange != nil {
		return *m.Exchange
	}
	return l.DefaultExchange
}

// Parcel is a message that was checked.
type Parcel struct {
	Exchange, Key string
	MessageID     string
	Timestamp     time.Time // in whole seconds; zero: none
	Properties
	// Headers have values of the types nil, bool, string, int64, float64, []any and map[string]any.
	Headers map[string]any
	Body    []byte
}

// Properties are those of the row, with defaults.
type Properties struct {
	ContentType, ContentEncoding, CorrelationID, ReplyTo, Expiration, Type, UserID, AppID string
	Priority                                                                              *uint8 // nil: none
	DeliveryMode                                                                          uint8
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

// Encode checks a message. Errors, always *invalid, are for messages that AMQP cannot carry; for some of them the
// library would close the whole connection.
//
// Encode drops the application's own x-possible-duplicate header, because only the relay knows the truth.
func Encode(m *outbox.Message, lim Limits, possibleDuplicate bool) (Parcel, error) {
	if reason, detail := m.Defect(time.Now()); reason != "" {
		return Parcel{}, &invalid{reason, detail}
	}
	if size := len(m.Payload); lim.MostBody > 0 && size > lim.MostBody {
		return Parcel{}, &invalid{outbox.ReasonTooLarge, outbox.TooLarge(size, lim.MostBody)}
	}
	p := Parcel{
		Exchange: lim.ExchangeOf(m), Key: m.RoutingKey, MessageID: m.MessageID.String(), Body: m.Payload,
		Properties: Properties{ContentType: "application/json", DeliveryMode: 2},
	}
	if m.Binary {
		p.ContentType = "application/octet-stream"
	}
	// AMQP timestamps start in 1970.
	if m.CreatedAt.Unix() >= 0 {
		p.Timestamp = m.CreatedAt.Truncate(time.Second)
	}
	if len(m.Properties) > 0 {
		if err := p.apply(m.Properties); err != nil {
			return Parcel{}, err
		}
	}
	if len(m.Headers) > 0 {
		headers, err := parseHeaders(m.Headers)
		if err != nil {
			return Parcel{}, err
		}
		delete(headers, outbox.PossibleDuplicateHeader)
		p.Headers = headers
	}
	for _, h := range m.Extra {
		if p.Headers == nil {
			p.Headers = make(map[string]any, len(m.Extra))
		}
		if _, own := p.Headers[h.Name]; !own {
			p.Headers[h.Name] = h.Value
		}
	}
	if left, expires := m.TimeLeft(time.Now()); expires {
		p.limitExpiration(max(left, time.Millisecond))
	}
	if err := p.checkFrame(lim.FrameMax); err != nil {
		return Parcel{}, err
	}
	if possibleDuplicate {
		if p.Headers == nil {
			p.Headers = make(map[string]any, 1)
		}
		p.Headers[outbox.PossibleDuplicateHeader] = true
	}
	return p, nil
}

// checkFrame limits the content header to one frame: for a larger one the broker closes the connection with 501.
func (p *Parcel) checkFrame(frameMax int) error {
	if frameMax <= 0 {
		return nil
	}
	headers := 0
	if len(p.Headers) > 0 {
		headers = tableSize(p.Headers)
	}
	size := p.propertiesSize() + headers + 4 + duplicateHeaderSize + frameOverhead
	if size <= frameMax {
		return nil
	}
	return &invalid{outbox.ReasonInvalidHeaders, fmt.Sprintf(
		"headers take %d bytes and the other properties %d, together %d more than RabbitMQ's frame_max of %d allows",
		headers, size-headers, size-frameMax, frameMax)}
}

// propertiesSize returns the size in bytes of the content header without the headers table. It may be too large, never
// too small.
func (p *Parcel) propertiesSize() int {
	const fixed = 2 + 2 + 8 + 2 + 1 + 1 + 8 // class, weight, body size, flags, delivery mode, priority, timestamp
	size := fixed
	for _, s := range [...]string{
		p.ContentType, p.ContentEncoding, p.CorrelationID, p.ReplyTo, p.Expiration,
		p.MessageID, p.Type, p.UserID, p.AppID,
	} {
		size += 1 + len(s)
	}
	return size
}

// tableSize returns the encoded size of a field table in bytes.
func tableSize(t map[string]any) int {
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
	case map[string]any:
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

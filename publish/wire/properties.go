package wire

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// longestExpiration is the greatest TTL of RabbitMQ, in milliseconds.
const longestExpiration = 4294967295

// fastReply is a reply_to for which RabbitMQ closes the channel of a publisher that does not consume from it.
const fastReply = "amq.rabbitmq.reply-to"

// apply sets the properties that the column names.
func (p *Properties) apply(raw []byte) error {
	object, err := parseObject(raw)
	if err != nil {
		return &invalid{outbox.ReasonInvalidProperties, "properties: " + err.Error()}
	}
	for name, value := range object {
		if err := p.set(name, value); err != nil {
			return err
		}
	}
	return nil
}

func (p *Properties) set(name string, value any) error {
	if field := p.text(name); field != nil {
		s, ok := value.(string)
		if !ok || len(s) > LongestShortString {
			return badProperty(name, fmt.Sprintf("must be a string of at most %d bytes", LongestShortString))
		}
		if name == "reply_to" && s == fastReply {
			return badProperty(name, "must not be "+fastReply+": the relay consumes no replies")
		}
		*field = s
		return nil
	}
	switch name {
	case "expiration":
		ms, ok := expiration(value)
		if !ok {
			return badProperty(name, fmt.Sprintf(
				"must be milliseconds, an integer from 0 to %d or a string of its digits", longestExpiration))
		}
		p.Expiration = ms
	case "priority":
		n, ok := integer(value, 255)
		if !ok {
			return badProperty(name, "must be an integer from 0 to 255")
		}
		p.Priority = new(uint8(n))
	case "delivery_mode":
		n, ok := integer(value, 2)
		if !ok || n == 0 {
			return badProperty(name, "must be 1 (transient) or 2 (persistent)")
		}
		p.DeliveryMode = uint8(n)
	default:
		return unknownProperty(name)
	}
	return nil
}

// text returns the field of a string property; nil: another property.
func (p *Properties) text(name string) *string {
	switch name {
	case "content_type":
		return &p.ContentType
	case "content_encoding":
		return &p.ContentEncoding
	case "correlation_id":
		return &p.CorrelationID
	case "reply_to":
		return &p.ReplyTo
	case "type":
		return &p.Type
	case "user_id":
		return &p.UserID
	case "app_id":
		return &p.AppID
	}
	return nil
}

// integer reads a JSON integer from 0 to most.
func integer(value any, most uint64) (uint64, bool) {
	number, ok := value.(json.Number)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(number.String(), 10, 64)
	return n, err == nil && n <= most
}

// expiration returns the TTL as AMQP wants it: digits in a string.
func expiration(value any) (string, bool) {
	if s, ok := value.(string); ok {
		value = json.Number(s)
	}
	n, ok := integer(value, longestExpiration)
	return strconv.FormatUint(n, 10), ok
}

// limitExpiration makes a queue drop the message when it expires, or at its own TTL if that is earlier. A time above
// RabbitMQ's limit is ignored.
func (p *Properties) limitExpiration(left time.Duration) {
	ms := uint64(left.Milliseconds())
	own, err := strconv.ParseUint(p.Expiration, 10, 64)
	if ms <= longestExpiration && (err != nil || ms < own) {
		p.Expiration = strconv.FormatUint(ms, 10)
	}
}

func unknownProperty(name string) error {
	return badProperty(name, "is not known; known are content_type, content_encoding, correlation_id, reply_to, "+
		"expiration, priority, type, user_id, app_id and delivery_mode")
}

func badProperty(name, what string) error {
	return &invalid{outbox.ReasonInvalidProperties, fmt.Sprintf("properties: %.60q %s", name, what)}
}

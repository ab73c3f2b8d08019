package soak

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

// address chooses the exchange and routing key for a queue, or for none.
func (p *planner) address(r *row, queue string) {
	to := func(exchange, key string) { r.exchange, r.routingKey = &exchange, key }
	way := p.random.IntN(4)
	if r.Kind == history.Unroutable {
		r.Reason = string(outbox.ReasonRetriesExceeded)
		nowhere := queue + ".nowhere"
		switch way {
		case 0, 1:
			to("", nowhere)
		case 2:
			to(directExchange, nowhere)
		case 3:
			to("soak.missing", queue) // an exchange that nobody declares
		}
		return
	}
	switch way {
	case 0:
		r.routingKey = queue // the relay's --exchange is the default exchange
	case 1:
		to("", queue)
	case 2:
		to(directExchange, queue)
	case 3:
		to(topicExchange, fmt.Sprintf("%s.created.%d", queue, p.random.IntN(10)))
	}
}

// fill gives the row a body, and some rows headers and properties.
func (p *planner) fill(r *row) {
	want := amqp.Delivery{RoutingKey: r.routingKey, DeliveryMode: amqp.Persistent, Timestamp: time.Unix(1, 0)}
	if r.exchange != nil {
		want.Exchange = *r.exchange
	}
	r.body, want.ContentType = p.body(r), "application/json"
	if r.Kind == history.Binary {
		want.ContentType = "application/octet-stream"
	}
	if p.chance(300) {
		want.Headers = amqp.Table{
			"tenant":      fmt.Sprintf("größe-%d", p.random.IntN(100)),
			"count":       p.random.Int64() - p.random.Int64(),
			"ratio":       0.25,
			"flag":        p.chance(500),
			"none":        nil,
			"list":        []any{int64(1), "two", 3.5, []any{true}},
			"nested":      amqp.Table{"a": amqp.Table{"b": int64(-1)}},
			"traceparent": fmt.Sprintf("00-%032x-%016x-01", p.random.Uint64(), p.random.Uint64()),
		}
		r.headers = object(want.Headers)
	}
	if p.chance(200) {
		want.Type, want.AppId, want.ReplyTo, want.ContentEncoding = "order", "soak", "answers", "identity"
		want.CorrelationId, want.Priority = fmt.Sprint(p.random.Uint32()), uint8(p.random.IntN(10))
		want.ContentType, want.Expiration = "application/x-soak", "86400000"
		r.properties = object(map[string]any{
			"type": want.Type, "app_id": want.AppId, "reply_to": want.ReplyTo, "content_encoding": want.ContentEncoding,
			"correlation_id": want.CorrelationId, "priority": want.Priority,
			"content_type": want.ContentType, "expiration": 86400000,
		})
	}
	if r.Kind == history.Impossible {
		p.spoil(r)
	}
	want.Body = r.body
	r.Content = content(&want)
}

// body formats its JSON as no encoder would, because the relay promises to keep every byte.
func (p *planner) body(r *row) []byte {
	size := p.between(0, 600)
	if r.Kind == history.Large {
		size = p.between(500_000, 2_000_000)
	}
	var seed [32]byte
	copy(seed[:], r.ID[:])
	body := make([]byte, size)
	_, _ = rand.NewChaCha8(seed).Read(body) // never fails
	if r.Kind == history.Binary {
		return body
	}
	fill := base64.StdEncoding.EncodeToString(body)
	return fmt.Appendf(nil, `{ "id":"%s",  "fill": "\u0000\/é😀 %s"}`+"\n", r.ID, fill)
}

// spoil makes a row that the table accepts, but AMQP or the broker does not.
func (p *planner) spoil(r *row) {
	r.Reason = string(outbox.ReasonInvalidHeaders)
	switch p.random.IntN(5) {
	case 0:
		r.headers = `{"number": 99999999999999999999}` // beyond 64 bits
	case 1:
		r.headers = object(map[string]any{strings.Repeat("k", 300): 1}) // the key is too long for a short string
	case 2:
		r.headers = `{"deep": ` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}`
	case 3:
		r.headers = `{"CC": "one-queue"}` // the broker wants a list
	case 4:
		r.properties = `{"user_id": "cdc-relay-soak-nobody"}` // the broker accepts only the connection's own user
		r.Reason = string(outbox.ReasonInvalidProperties)
	}
}

// object returns JSON with sorted keys, so that the same choices give the same text.
func object(fields any) string {
	text, err := json.Marshal(fields)
	if err != nil {
		panic(fmt.Sprintf("marshal %v: %v", fields, err)) // constants of this file
	}
	return string(text)
}

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

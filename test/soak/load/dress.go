package load

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

// address chooses the exchange and routing key for a queue, or for none.
func (p *planner) address(r *row, queue string) {
	to := func(exchange, key string) { r.exchange, r.routingKey = &exchange, key }
	way := p.random.IntN(4)
	if r.Kind == history.Unroutable {
		nowhere := queue + ".nowhere"
		switch way {
		case 0, 1:
			to("", nowhere)
		case 2:
			to(p.topology.Direct(), nowhere)
		case 3:
			to(p.topology.Prefix+".missing", queue) // an exchange that nobody declares
		}
		return
	}
	switch way {
	case 0:
		r.routingKey = queue // the relay's --exchange is the default exchange
	case 1:
		to("", queue)
	case 2:
		to(p.topology.Direct(), queue)
	case 3:
		to(p.topology.Topic(), fmt.Sprintf("%s.created.%d", queue, p.random.IntN(10)))
	}
}

// dress gives some rows headers and properties.
func (p *planner) dress(r *row) {
	headers, properties := p.chance(300), p.chance(200)
	if headers {
		r.headers = object(map[string]any{
			"tenant":      fmt.Sprintf("größe-%d", p.random.IntN(100)),
			"count":       p.random.Int64() - p.random.Int64(),
			"ratio":       0.25,
			"flag":        p.chance(500),
			"none":        nil,
			"list":        []any{1, "two", 3.5, []any{}},
			"nested":      map[string]any{"a": map[string]any{"b": -1}},
			"traceparent": fmt.Sprintf("00-%032x-%016x-01", p.random.Uint64(), p.random.Uint64()),
		})
	}
	if properties {
		r.properties = object(map[string]any{
			"type":             "order",
			"app_id":           "soak",
			"correlation_id":   fmt.Sprint(p.random.Uint32()),
			"reply_to":         "answers",
			"priority":         p.random.IntN(10),
			"content_encoding": "identity",
			"content_type":     "application/x-soak",
			"expiration":       86400000,
		})
	}
	if r.Kind == history.Impossible {
		p.spoil(r)
	}
}

// spoil makes a row that the table accepts, but AMQP or the broker does not.
func (p *planner) spoil(r *row) {
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
	}
}

// object returns JSON with sorted keys, so that the same choices give the same text.
func object(fields map[string]any) string {
	text, err := json.Marshal(fields)
	if err != nil {
		panic(fmt.Sprintf("marshal %v: %v", fields, err)) // constants of this file
	}
	return string(text)
}

package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"
)

// message is a line of the relay.
type message struct {
	ID                string                     `json:"message_id"`
	Exchange          string                     `json:"exchange"`
	RoutingKey        string                     `json:"routing_key"`
	OrderingKey       *string                    `json:"ordering_key"`
	Headers           map[string]json.RawMessage `json:"headers"`
	Properties        map[string]json.RawMessage `json:"properties"`
	PossibleDuplicate bool                       `json:"possible_duplicate"`
	Payload           json.RawMessage            `json:"payload"`
	Binary            []byte                     `json:"payload_base64"`
}

// idOf returns the message_id of a line that is no message for encoding/json. It is the second key.
func idOf(line []byte) string {
	_, rest, _ := bytes.Cut(line, []byte(`"message_id":"`))
	id, _, _ := bytes.Cut(rest, []byte(`"`))
	return string(id)
}

// record returns the record of a message. The topic is the exchange, or the routing key for AMQP's default exchange,
// where it is the name of a queue. The key is the ordering key, so messages of one key are in one partition.
func (m *message) record() *kgo.Record {
	headers := make(map[string][]byte)
	for _, values := range []map[string]json.RawMessage{m.Properties, m.Headers} {
		for name, value := range values {
			headers[name] = text(value)
		}
	}
	headers["message_id"], headers["routing_key"] = []byte(m.ID), []byte(m.RoutingKey)
	delete(headers, "x-possible-duplicate")
	if m.PossibleDuplicate {
		headers["x-possible-duplicate"] = []byte("true")
	}
	r := &kgo.Record{Topic: m.Exchange, Value: m.Payload}
	if r.Topic == "" {
		r.Topic = m.RoutingKey
	}
	if m.OrderingKey != nil {
		r.Key = []byte(*m.OrderingKey)
	}
	if m.Binary != nil {
		r.Value = m.Binary
	}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: headers[name]})
	}
	return r
}

// text returns a string as it is, and other values as JSON.
func text(value json.RawMessage) []byte {
	var s string
	if json.Unmarshal(value, &s) == nil && value[0] == '"' {
		return []byte(s)
	}
	return value
}

package wire

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Line is the start of a message as the publishers stdout and handler write it: one JSON object on one line. payload
// and payload_base64 follow. The keys and their order are part of the contract (docs/delivery.md).
type Line struct {
	ID                int64           `json:"id"`
	MessageID         string          `json:"message_id"`
	Exchange          string          `json:"exchange"`
	RoutingKey        string          `json:"routing_key"`
	OrderingKey       *string         `json:"ordering_key"`
	Headers           json.RawMessage `json:"headers"`
	Properties        json.RawMessage `json:"properties"`
	CreatedAt         time.Time       `json:"created_at"`
	PossibleDuplicate bool            `json:"possible_duplicate"`
}

// NewLine makes the line of a message that is sent now. Errors are for messages that AMQP could not carry either.
func NewLine(m *outbox.Message, defaultExchange string) (Line, error) {
	mark := m.MayBeKnown()
	parcel, err := Encode(m, Limits{DefaultExchange: defaultExchange, FrameMax: defaultFrameMax}, mark)
	if err != nil {
		return Line{}, err
	}
	headers := m.Headers
	if len(m.Extra) > 0 || bytes.Contains(headers, []byte(outbox.PossibleDuplicateHeader)) {
		headers = withExtra(m)
	}
	properties := m.Properties
	if m.Deadline != nil && parcel.Expiration != "" {
		properties = withExpiration(properties, parcel.Expiration)
	}
	return Line{
		ID: m.ID, MessageID: parcel.MessageID, Exchange: parcel.Exchange, RoutingKey: m.RoutingKey,
		OrderingKey: m.OrderingKey, Headers: headers, Properties: properties,
		CreatedAt: m.CreatedAt, PossibleDuplicate: mark,
	}, nil
}

// AppendLine appends the line of a message that is sent now. After an error, always *invalid, nothing is appended.
func AppendLine(b *bytes.Buffer, m *outbox.Message, defaultExchange string) error {
	line, err := NewLine(m, defaultExchange)
	if err != nil {
		return err
	}
	begin := b.Len()
	encoder := json.NewEncoder(b)
	encoder.SetEscapeHTML(false)
	err = encoder.Encode(line)
	if err != nil { // only a date out of range
		b.Truncate(begin)
		return &invalid{outbox.ReasonInvalidRow, err.Error()}
	}
	b.Truncate(b.Len() - len("}\n"))
	appendPayload(b, m)
	return nil
}

// appendPayload writes the payload unchanged: JSON on one line, in UTF-8, as it is, otherwise base64. The JSON encoder
// would rewrite it.
func appendPayload(b *bytes.Buffer, m *outbox.Message) {
	if !m.Binary && !bytes.ContainsAny(m.Payload, "\n\r") && json.Valid(m.Payload) && utf8.Valid(m.Payload) {
		b.WriteString(`,"payload":`)
		b.Write(m.Payload)
		b.WriteString(`,"payload_base64":null}` + "\n")
		return
	}
	b.WriteString(`,"payload":null,"payload_base64":"`)
	b.Write(base64.StdEncoding.AppendEncode(b.AvailableBuffer(), m.Payload))
	b.WriteString(`"}` + "\n")
}

// withExtra returns the headers of an encoded message, with the header columns and, as Encode does, without the
// application's own mark.
func withExtra(m *outbox.Message) json.RawMessage {
	headers := make(map[string]any)
	for _, h := range m.Extra {
		headers[h.Name] = h.Value
	}
	own := map[string]json.RawMessage{}
	if len(m.Headers) > 0 {
		_ = json.Unmarshal(m.Headers, &own) // Encode has read them
	}
	delete(own, outbox.PossibleDuplicateHeader)
	for name, value := range own {
		headers[name] = value
	}
	text, _ := json.Marshal(headers) // strings, numbers, booleans, and former JSON
	return text
}

// withExpiration returns the properties with the expiration that Encode has chosen, in milliseconds.
func withExpiration(properties json.RawMessage, expiration string) json.RawMessage {
	all := map[string]json.RawMessage{}
	if len(properties) > 0 {
		_ = json.Unmarshal(properties, &all) // Encode has read them
	}
	all["expiration"] = json.RawMessage(expiration)
	text, _ := json.Marshal(all)
	return text
}

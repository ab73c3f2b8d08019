package load

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

// inspect compares a delivery with the description in its body.
func inspect(d *amqp.Delivery, queue string) history.Delivery {
	seen := history.Delivery{
		Queue:       queue,
		Marked:      d.Headers[outbox.PossibleDuplicateHeader] == true,
		Redelivered: d.Redelivered,
		Content:     content(d),
	}
	var err error
	if seen.Message, err = parseID(d.MessageId); err != nil {
		seen.Damaged = fmt.Sprintf("message-id is %q", d.MessageId)
		return seen
	}
	a, err := readBody(d.Body, !bytes.HasPrefix(d.Body, []byte("{")))
	if err != nil {
		seen.Damaged = err.Error()
		return seen
	}
	seen.Damaged = cmp.Or(misplaced(d, a), damage(d, a))
	return seen
}

// content returns a checksum of everything that settings of the relay and faults must not change.
func content(d *amqp.Delivery) string {
	same := *d
	same.Headers = amqp.Table{}
	maps.Copy(same.Headers, d.Headers)
	delete(same.Headers, outbox.PossibleDuplicateHeader)
	same.Timestamp, same.Redelivered = time.Time{}, false
	same.Acknowledger, same.ConsumerTag, same.DeliveryTag = nil, "", 0
	return fmt.Sprintf("%016x", checksum(fmt.Appendf(nil, "%#v", same)))
}

// misplaced says how the message's id or address differs from what was written; "": they do not.
func misplaced(d *amqp.Delivery, a *about) string {
	for _, field := range []struct{ name, got, want string }{
		{"message-id", d.MessageId, a.ID},
		{"exchange", d.Exchange, a.Exchange},
		{"routing key", d.RoutingKey, a.RoutingKey},
	} {
		if field.got != field.want {
			return fmt.Sprintf("%s is %q, want %q", field.name, field.got, field.want)
		}
	}
	return ""
}

// damage says how the message's properties differ from what was written; "": they do not.
func damage(d *amqp.Delivery, a *about) string {
	if d.Timestamp.IsZero() {
		return "there is no timestamp"
	}
	return cmp.Or(wrongHeaders(d.Headers, a.Headers), wrongProperties(d, a))
}

func wrongHeaders(got amqp.Table, raw json.RawMessage) string {
	want, err := jsonObject(raw)
	if err != nil {
		return err.Error()
	}
	for name, value := range want {
		arrived, ok := got[name]
		if !ok {
			return fmt.Sprintf("header %.40q is missing", name)
		}
		if !sameField(arrived, value) {
			return fmt.Sprintf("header %.40q is %.100v (%T), want %.100v", name, arrived, arrived, value)
		}
	}
	for name := range got {
		// The relay's mark, and headers that brokers add, such as x-delivery-count.
		if _, ok := want[name]; !ok && !strings.HasPrefix(name, "x-") {
			return fmt.Sprintf("header %.40q was not written", name)
		}
	}
	return ""
}

func jsonObject(raw json.RawMessage) (map[string]any, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var object map[string]any
	if err := decoder.Decode(&object); err != nil {
		return nil, fmt.Errorf("the body describes something that is not a JSON object: %w", err)
	}
	return object, nil
}

// sameField follows docs/contract.md: integers are int64, numbers with a fraction float64.
func sameField(got, want any) bool {
	switch want := want.(type) {
	case json.Number:
		if strings.ContainsAny(want.String(), ".eE") {
			f, err := want.Float64()
			return err == nil && got == f
		}
		n, err := want.Int64()
		return err == nil && got == n
	case []any:
		list, ok := got.([]any)
		if !ok || len(list) != len(want) {
			return false
		}
		for i := range want {
			if !sameField(list[i], want[i]) {
				return false
			}
		}
		return true
	case map[string]any:
		table, ok := got.(amqp.Table)
		if !ok || len(table) != len(want) {
			return false
		}
		for name := range want {
			if !sameField(table[name], want[name]) {
				return false
			}
		}
		return true
	}
	return got == want // string, bool, nil
}

// wrongProperties expects the defaults of docs/contract.md if nothing was written.
func wrongProperties(d *amqp.Delivery, a *about) string {
	want, err := jsonObject(a.Properties)
	if err != nil {
		return err.Error()
	}
	byDefault := map[string]string{"content_type": "application/json", "delivery_mode": "2", "priority": "0"}
	if a.Kind == history.Binary {
		byDefault["content_type"] = "application/octet-stream"
	}
	for name, got := range map[string]string{
		"content_type": d.ContentType, "content_encoding": d.ContentEncoding, "correlation_id": d.CorrelationId,
		"reply_to": d.ReplyTo, "expiration": d.Expiration, "type": d.Type, "app_id": d.AppId, "user_id": d.UserId,
		"priority": strconv.Itoa(int(d.Priority)), "delivery_mode": strconv.Itoa(int(d.DeliveryMode)),
	} {
		expected := byDefault[name]
		if value, ok := want[name]; ok {
			expected = fmt.Sprint(value)
		}
		if got != expected {
			return fmt.Sprintf("property %s is %q, want %q", name, got, expected)
		}
	}
	return ""
}

package amqp

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// An unroutable message comes back with its headers, and the library must be able to read them.
func TestReturnsWithTheDeepestAndLargestHeadersAreRead(t *testing.T) {
	t.Parallel()
	_, q, r := publishing(t)
	mark := r.Mark()
	var k publishtest.Maker
	const deepest, mostHeaders, mostElements = 32, 8184, 8192 // as docs/contract.md says
	within := func(what string) []byte { return []byte(`{"a": ` + what + `}`) }
	list := func(n int) string { return "[" + strings.Repeat("null,", n-1) + "null]" }
	for name, headers := range map[string]struct{ most, beyond []byte }{
		"nesting":  {[]byte(publishtest.NestedHeaders(deepest)), []byte(publishtest.NestedHeaders(deepest + 1))},
		"headers":  {publishtest.ManyHeaders(mostHeaders), publishtest.ManyHeaders(mostHeaders + 1)},
		"a table":  {within(string(publishtest.ManyHeaders(mostElements))), within(string(publishtest.ManyHeaders(mostElements + 1)))},
		"an array": {within(list(mostElements)), within(list(mostElements + 1))},
	} {
		most, beyond := k.Make("", "nowhere", `{}`), k.Make("", "nowhere", `{}`)
		most.Headers, beyond.Headers = headers.most, headers.beyond
		most.PossibleDuplicate = true // the mark is added to these
		neighbour := k.Make("", q, `{}`)
		results := r.Answers(t, most, beyond, neighbour)
		checkRejected(t, results[0], outbox.ReasonUnroutable)
		if results[1].Outcome != outbox.Impossible || results[1].Reason != outbox.ReasonInvalidHeaders {
			t.Errorf("one more %s: %+v", name, results[1])
		}
		publishtest.AllAre(t, results[2:], outbox.Confirmed)
	}
	if r.Mark() != mark {
		t.Error("the connection was lost")
	}
}

// A property that was given as 0 has its flag on the wire, and one that was not given has none.
func TestZeroValuesThatWereGivenAreSent(t *testing.T) {
	t.Parallel()
	const priority, timestamp = 0x0800, 0x0040
	u := services.VHost(t)
	frames, behind := behindFrames(t, u)
	a := newAdmin(t, behind)
	q := a.queue(services.Name(t), nil)
	var flags uint16
	frames.Rule(func(frame []byte) time.Duration {
		if frame[0] == 2 { // a content header
			flags = binary.BigEndian.Uint16(frame[19:])
		}
		return 0
	})
	r := startAMQP(t, Config{URL: u})
	var k publishtest.Maker
	tests := []struct {
		properties string
		want       uint16
		mode, got  uint8
		size       int
	}{
		{`{}`, 0, 2, 0, 0},
		{`{"priority": 7}`, priority, 2, 7, 0},
		{`{"priority": 0}`, priority, 2, 0, 0},
		{`{"priority": 0, "delivery_mode": 1, "content_encoding": "x", "correlation_id": "c"}`, priority, 1, 0, 0},
		// The library writes these in several pieces.
		{`{"priority": 0}`, priority, 2, 0, 4000},
		{`{"priority": 0}`, priority, 2, 0, 4096},
		{`{"priority": 0}`, priority, 2, 0, 100_000},
		{`{}`, 0, 2, 0, 100_000},
	}
	var messages []*outbox.Message
	for _, test := range tests {
		m := k.Make("", q, `"`+strings.Repeat("x", 2*test.size)+`"`)
		m.Properties, m.CreatedAt = []byte(test.properties), time.Unix(0, 0)
		if test.size > 0 {
			m.Headers = []byte(`{"a": "` + strings.Repeat("x", test.size) + `"}`)
		}
		messages = append(messages, m)
	}
	publishtest.AllAre(t, r.publishUntilConfirmed(t, messages...), outbox.Confirmed)
	for i, test := range tests {
		d, _, err := a.channel.Get(q, true)
		must(t, err)
		if got := flags & (priority | timestamp); got != test.want|timestamp || d.Priority != test.got || d.DeliveryMode != test.mode ||
			len(d.Body) != len(messages[i].Payload) || d.Timestamp.Unix() != 0 {
			t.Errorf("%s with headers of %d: flags %#x, priority %d, mode %d, %v", test.properties, test.size, flags, d.Priority, d.DeliveryMode, d.Timestamp)
		}
	}
}

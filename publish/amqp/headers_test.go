package amqp

import (
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
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
		r.PublishAll(most, beyond, neighbour)
		results := r.AwaitResults(t, most, beyond, neighbour)
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

package publish

import (
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// An unroutable message comes back with its headers, and the library must be able to read them.
func TestReturnsWithTheDeepestAndLargestHeadersAreRead(t *testing.T) {
	t.Parallel()
	u := services.VHost(t)
	a := newAdmin(t, u)
	q := a.queue(services.Name(t), nil)
	r := startAMQP(t, AMQPConfig{URL: u})
	mark := r.mark()
	var k maker
	within := func(what string) []byte { return []byte(`{"a": ` + what + `}`) }
	list := func(n int) string { return "[" + strings.Repeat("null,", n-1) + "null]" }
	for name, headers := range map[string]struct{ most, beyond []byte }{
		"nesting":  {[]byte(nested(deepestHeader)), []byte(nested(deepestHeader + 1))},
		"headers":  {table(mostHeaders), table(mostHeaders + 1)},
		"a table":  {within(string(table(mostElements))), within(string(table(mostElements + 1)))},
		"an array": {within(list(mostElements)), within(list(mostElements + 1))},
	} {
		most, beyond := k.make("", "nowhere", `{}`), k.make("", "nowhere", `{}`)
		most.Headers, beyond.Headers = headers.most, headers.beyond
		most.PossibleDuplicate = true // the mark is added to these
		neighbour := k.make("", q, `{}`)
		r.publish(most, beyond, neighbour)
		results := r.awaitResults(t, most, beyond, neighbour)
		checkRejected(t, results[0], outbox.ReasonUnroutable)
		if results[1].Outcome != outbox.Impossible || results[1].Reason != outbox.ReasonInvalidHeaders {
			t.Errorf("one more %s: %+v", name, results[1])
		}
		allAre(t, results[2:], outbox.Confirmed)
	}
	if r.mark() != mark {
		t.Error("the connection was lost")
	}
}

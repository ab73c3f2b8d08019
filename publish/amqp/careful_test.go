package amqp

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
)

// given collects results.
type given []outbox.Result

func (g *given) Deliver(r outbox.Result)      { *g = append(*g, r) }
func (g *given) StateChanged(s publish.State) {}

// Each message without a place gets a later time, so that they do not all come at once.
func TestMessagesWithoutAPlaceComeOneAfterTheOther(t *testing.T) {
	var back given
	c := newCareful(&session{link: newLink(opened{clock: newClock()}, time.Second), sink: &back, maxInFlight: 80})
	c.pace = time.Second
	m := &outbox.Message{}
	for range 80 {
		c.admit(m)
	}
	if c.messages != 30 || len(back) != 50 {
		t.Errorf("%d messages have a place and %d went back, want three eighths of 80", c.messages, len(back))
	}
	last := time.Duration(0)
	for _, r := range back {
		if r.Outcome != outbox.NotSent || r.RetryIn < last || r.RetryIn < soonest || r.RetryIn > latest {
			t.Errorf("%s after %s: %+v", r.RetryIn, last, r)
		}
		last = r.RetryIn
	}
	if last < latest-time.Second {
		t.Errorf("the last of 50 comes after %s", last)
	}
	c.leave(m)
	if !c.admit(m) {
		t.Error("a free place was not given")
	}
}

func TestTheBytesThatWaitAreBounded(t *testing.T) {
	var back given
	c := newCareful(&session{link: newLink(opened{clock: newClock()}, time.Second), sink: &back, maxInFlight: 80})
	c.pace = time.Second
	large := &outbox.Message{Row: outbox.Row{Payload: make([]byte, 20<<20)}}
	if !c.admit(large) {
		t.Error("a message larger than the share never gets a place")
	}
	if c.admit(&outbox.Message{}) {
		t.Error("a place beside it was given")
	}
	if c.leave(large); !c.admit(&outbox.Message{}) {
		t.Error("a free place was not given")
	}
}

package core

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// A few rows that are not small fill the window, and it is empty once they are settled.
func TestStreamedRowsAreBoundedInBytes(t *testing.T) {
	c := leading(100)
	var sent []*outbox.Message
	for id := int64(1); id <= 20; id++ {
		m := &outbox.Message{Row: outbox.Row{ID: id, Payload: make([]byte, c.limits.Bytes/5)}, XID: uint32(id)}
		out, _ := c.Streamed(m, uint64(id), false)
		sent = append(sent, out.Publish...)
	}
	if len(sent) != 4 {
		t.Errorf("%d rows of a fifth of the window leave", len(sent))
	}
	for _, m := range sent {
		out, _ := c.Resolved(outbox.Result{Message: m, Outcome: outbox.Confirmed})
		c.Settled(out.Settle)
	}
	if c.mu.window.bytes != 0 || c.View().InFlight != 0 {
		t.Errorf("%d bytes and %d rows are left in the window", c.mu.window.bytes, c.View().InFlight)
	}
}

func TestOneHotKeyQueuesABoundedNumber(t *testing.T) {
	c := leading(1000)
	c.mu.keys.unknownKeysMayWait = false
	key := "k"
	for id := int64(1); id <= 200; id++ {
		c.Streamed(&outbox.Message{Row: outbox.Row{ID: id, OrderingKey: &key}, XID: uint32(id)}, uint64(id), false)
	}
	if got := c.View().InFlight; got != 1+mostQueued {
		t.Errorf("%d messages of the key are in memory", got)
	}
}

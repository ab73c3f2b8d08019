package publish_test

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
)

// A thousand messages that are tried again, perhaps with many headers, must not stand before one that is new.
func TestRetriesGiveWayToNewMessages(t *testing.T) {
	inbox := publish.NewInbox()
	send := func(id int64, attempts int) {
		inbox.Publish(&outbox.Message{Row: outbox.Row{ID: id, Attempts: attempts}})
	}
	for id := range int64(1000) {
		send(id, 1)
	}
	for retries, fresh := int64(0), int64(1000); ; fresh++ {
		send(fresh, 0)
		taken := inbox.Messages.Take(nil)
		if taken[0].ID != fresh || len(taken) > 100 {
			t.Fatalf("message %d is among %d, of which the first is %d", fresh, len(taken), taken[0].ID)
		}
		for _, m := range taken[1:] {
			if m.ID != retries {
				t.Fatalf("message %d is in the place of %d", m.ID, retries)
			}
			retries++
		}
		if retries == 1000 {
			return
		}
		select {
		case <-inbox.Messages.Wake():
		default:
			t.Fatalf("nothing wakes the taker, %d messages are left", 1000-retries)
		}
	}
}

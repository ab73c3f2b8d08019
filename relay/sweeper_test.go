package relay

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
)

// TestASlotThatIsJustFreeIsLeftToWhoStreams: among millions of young rows, nobody looks for one that is old.
func TestASlotThatIsJustFreeIsLeftToWhoStreams(t *testing.T) {
	i := newInstance(t)
	db, err := store.Open(i.config.DatabaseURL, i.config.Table, false, outbox.Shard{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	s := &sweeper{core: newCore(10, defaultBounds(), nil), store: db, slot: i.config.Slot, staleAge: time.Hour}
	if age, ok, err := s.unclaimedAge(t.Context()); ok || err != nil {
		t.Errorf("at once it looks for rows that are %s old, %v", age, err)
	}
	s.core.mu.freeSince = time.Now().Add(-2 * freeSlotAge)
	if age, ok, err := s.unclaimedAge(t.Context()); !ok || age != freeSlotAge || err != nil {
		t.Errorf("after a while it looks for rows that are %s old, %v, %v", age, ok, err)
	}
}

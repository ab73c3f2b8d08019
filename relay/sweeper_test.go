package relay

import (
	"context"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/fallback"
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

// TestAPassDoesNotWalkAgainForATransactionThatGoesOn: whether it has ended is asked instead.
func TestAPassDoesNotWalkAgainForATransactionThatGoesOn(t *testing.T) {
	i := newInstance(t)
	db, err := store.Open(i.config.DatabaseURL, i.config.Table, false, outbox.Shard{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	open, err := i.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = open.Rollback(context.Background()) }()
	var xid uint32
	if err := open.QueryRow(t.Context(), `SELECT pg_current_xact_id()::xid::text::bigint`).Scan(&xid); err != nil {
		t.Fatal(err)
	}
	// A later one that has ended: snapshots list those that go on before it.
	if _, err := i.db.Exec(t.Context(), `SELECT pg_current_xact_id()`); err != nil {
		t.Fatal(err)
	}
	c := newCore(10, defaultBounds(), newTestMetrics(t))
	c.tookSlot(0, 0)
	c.streamLive(true)
	s := &sweeper{core: c, store: db, slot: i.config.Slot, page: 10, pageRows: 10}
	pass := func() (found int) {
		t.Helper()
		for more := true; more; {
			sweep := c.beginSweep(s.page)
			var rows []*outbox.Message
			if rows, more, err = s.readLeftovers(t.Context(), sweep); err != nil {
				t.Fatal(err)
			}
			sweep.end()
			found += len(rows)
		}
		return found
	}
	insert := func() {
		t.Helper()
		if _, err := i.db.Exec(t.Context(), `INSERT INTO outbox (routing_key, payload) VALUES ('r', '1')`); err != nil {
			t.Fatal(err)
		}
	}
	if pass(); !c.mu.awaited {
		t.Fatal("after the first pass nothing is awaited")
	}
	c.mu.left = map[uint32]struct{}{xid: {}} // without those of other tests
	insert()
	if n := pass(); n > 0 {
		t.Errorf("%d rows were read while the transaction goes on", n)
	}
	s.readThrough = time.Now().Add(-2 * fallback.LeftoverSafety)
	if n := pass(); n != 1 {
		t.Errorf("after a while %d rows were read", n)
	}
	c.mu.left = map[uint32]struct{}{xid: {}}
	insert()
	if err := open.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := pass(); n != 1 {
		t.Errorf("after its end %d rows were read", n)
	}
	if c.mu.leftovers {
		t.Error("another pass is wanted")
	}
}

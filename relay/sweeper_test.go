package relay

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/fallback"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
)

// TestASlotThatIsJustFreeIsLeftToWhoStreams: among millions of young rows, nobody looks for one that is old.
func TestASlotThatIsJustFreeIsLeftToWhoStreams(t *testing.T) {
	i := newInstance(t)
	db := i.openStore()
	s := &sweeper{core: newCore(10, defaultBounds(), nil), store: db, slot: i.config.Slot, staleAge: Config{StaleTimeout: time.Hour}.StaleAge()}
	if which, ok, err := s.unclaimed(t.Context()); ok || err != nil {
		t.Errorf("at once it looks for rows that are %s old, %v", which.Age, err)
	}
	s.core.mu.freeSince = time.Now().Add(-2 * freeSlotAge)
	if which, ok, err := s.unclaimed(t.Context()); !ok || which.Age != freeSlotAge || err != nil {
		t.Errorf("after a while it looks for rows that are %s old, %v, %v", which.Age, ok, err)
	}
}

// TestAPassDoesNotWalkAgainForATransactionThatGoesOn: whether it has ended is asked instead.
func TestAPassDoesNotWalkAgainForATransactionThatGoesOn(t *testing.T) {
	i := newInstance(t)
	db := i.openStore()
	open, err := i.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = open.Rollback(context.Background()) }()
	var xid uint32
	if err := open.QueryRow(t.Context(), `SELECT pg_current_xact_id()::xid::text::bigint`).Scan(&xid); err != nil {
		t.Fatal(err)
	}
	c := newCore(10, defaultBounds(), newTestMetrics(t))
	c.clock = standstill
	c.tookSlot(holding{})
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
	c.mu.unseen = map[uint32]struct{}{xid: {}} // without those of other tests
	insert()
	if n := pass(); n > 0 {
		t.Errorf("%d rows were read while the transaction goes on", n)
	}
	s.readThrough = time.Now().Add(-2 * fallback.LeftoverSafety)
	if n := pass(); n != 1 {
		t.Errorf("after a while %d rows were read", n)
	}
	c.mu.unseen = map[uint32]struct{}{xid: {}}
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

// TestWhatWasSpilledIsReadFromThereOn: the pass leaves alone what lies before, which may be millions of dead rows.
func TestWhatWasSpilledIsReadFromThereOn(t *testing.T) {
	i := newInstance(t)
	db := i.openStore()
	rows, err := i.db.Query(t.Context(), `INSERT INTO outbox (routing_key, payload) SELECT 'r', '1' FROM generate_series(1, 20) RETURNING id`)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		t.Fatal(err)
	}
	c := newCore(100, defaultBounds(), newTestMetrics(t))
	c.clock = standstill
	c.tookSlot(holding{})
	c.lock()
	for _, n := range []int{15, 12, 17} {
		c.leave(&outbox.Message{ID: ids[n]})
	}
	c.mu.Unlock()
	s := &sweeper{core: c, store: db, slot: i.config.Slot, page: 5, pageRows: 5}
	var found []int64
	for more := true; more; {
		sweep := c.beginSweep(s.page)
		var page []*outbox.Message
		if page, more, err = s.readSpilled(t.Context(), sweep); err != nil {
			t.Fatal(err)
		}
		sweep.end()
		for _, m := range page {
			found = append(found, m.ID)
		}
	}
	if !slices.Equal(found, ids[12:]) {
		t.Errorf("found %v, want %v", found, ids[12:])
	}
	if c.view(5).Spilled {
		t.Error("another pass is wanted")
	}
}

// TestTransactionsThatAreTooManyToRemember: their rows are looked for in the whole table, by a pass that
// learns which of them are still under way.
func TestTransactionsThatAreTooManyToRemember(t *testing.T) {
	most := defaultBounds()
	most.left = 1
	c := newCore(100, most, newTestMetrics(t))
	c.clock = standstill
	c.tookSlot(holding{})
	snapshot := func(text string) store.Snapshot { return parseSnapshot(t, text) }
	pass := c.beginSweep(10)
	pass.leftoversEnded(snapshot("200:200:"), c.leftoversBegan())
	if v := c.view(10); v.Leftovers || v.Spilled {
		t.Fatalf("after a first pass: %+v", v)
	}
	c.lock()
	for _, xid := range []uint32{201, 202} {
		c.leave(&outbox.Message{ID: int64(xid), XID: xid})
	}
	c.mu.Unlock()
	c.spilledBegan()
	pass.spilledEnded(snapshot("202:203:202"))
	if v := c.view(10); !v.Leftovers || v.Spilled {
		t.Fatalf("after a pass over what was spilled: %+v", v)
	}
	naming := c.leftoversBegan()
	if !naming {
		t.Error("the pass does not ask which transactions are under way")
	}
	pass.leftoversEnded(snapshot("202:204:202"), naming)
	if !c.mu.awaited || c.hasEnded(snapshot("202:205:202")) || !c.hasEnded(snapshot("206:206:")) {
		t.Error("the transaction that is under way is not waited for")
	}
	pass.end()
}

func parseSnapshot(t *testing.T, text string) store.Snapshot {
	t.Helper()
	s, err := store.ParseSnapshot(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// spilledCore has had its first passes, and left rows of two transactions.
func spilledCore(t *testing.T) *core {
	t.Helper()
	c := newCore(100, defaultBounds(), newTestMetrics(t))
	c.clock = standstill
	c.tookSlot(holding{})
	c.beginSweep(10).leftoversEnded(parseSnapshot(t, "200:200:"), c.leftoversBegan())
	c.lock()
	defer c.mu.Unlock()
	for xid, ids := range map[uint32][]int64{201: {1000, 1001}, 202: {3000, 2000}} {
		for _, id := range ids {
			c.leave(&outbox.Message{ID: id, XID: xid})
		}
	}
	return c
}

// TestWhatAPassOverTheSpilledRowsCannotSeeIsReadFromThereOn: what lies before may be dead rows by the million.
func TestWhatAPassOverTheSpilledRowsCannotSeeIsReadFromThereOn(t *testing.T) {
	c := spilledCore(t)
	if from := c.spilledBegan(); from != 1000 {
		t.Fatalf("the pass begins with row %d", from)
	}
	c.beginSweep(10).spilledEnded(parseSnapshot(t, "202:203:202"))
	if from := c.spilledBegan(); from != 2000 {
		t.Errorf("the next begins with row %d", from)
	}
}

// TestAPassThatFailsTakesNoOtherDown: each is done again from where it began.
func TestAPassThatFailsTakesNoOtherDown(t *testing.T) {
	c := spilledCore(t)
	s := &sweeper{core: c}
	s.spilled = pass[int64]{begun: true, from: c.spilledBegan()}
	s.keys = pass[string]{begun: true, after: "key"}
	s.beginAgain(fallback.Spilled)
	if v := c.view(10); !v.Spilled || v.Leftovers || s.spilled.begun || !s.keys.begun {
		t.Errorf("after the failure: %+v", v)
	}
	if from := c.spilledBegan(); from != 1000 {
		t.Errorf("the next pass begins with row %d", from)
	}
	c.lock()
	c.leave(&outbox.Message{ID: 4000, XID: 203})
	c.mu.Unlock()
	s.leftovers = pass[int64]{begun: true, naming: c.leftoversBegan()}
	s.beginAgain(fallback.Leftovers)
	if v := c.view(10); !v.Spilled || !v.Leftovers {
		t.Errorf("after the failure: %+v", v)
	}
	if naming := c.leftoversBegan(); naming {
		t.Error("a pass that named no transactions does so when it is done again")
	}
	if from := c.spilledBegan(); from != 4000 || len(c.mu.left) != 3 {
		t.Errorf("what was left is forgotten: from %d on, %v", from, c.mu.left)
	}
}

// TestAKeyThatWasNotRememberedIsLookedForUntilItsRowsAreVisible: the transactions under way are named anew.
func TestAKeyThatWasNotRememberedIsLookedForUntilItsRowsAreVisible(t *testing.T) {
	most := defaultBounds()
	most.keys = 1
	c := newCore(100, most, newTestMetrics(t))
	c.clock = standstill
	c.tookSlot(holding{})
	sweep := c.beginSweep(10)
	c.keyPassBegan()
	sweep.keyPassEnded(parseSnapshot(t, "200:200:"))
	if c.mu.gate.suspicious {
		t.Fatal("after a first pass any key may have rows")
	}
	c.publisherReady(true)
	for xid, key := range map[uint32]string{201: "a", 202: "b"} {
		c.lock()
		c.leave(&outbox.Message{ID: int64(xid), XID: xid, OrderingKey: &key})
		c.mu.Unlock()
	}
	if !c.keyPassBegan() {
		t.Error("the pass does not name the transactions under way")
	}
	sweep.keyPassEnded(parseSnapshot(t, "201:203:201,202"))
	if !c.mu.gate.suspicious {
		t.Error("the rows of a key are forgotten before they are visible")
	}
}

// standstill is a clock for cores of tests that read a database for as long as that takes: no time passes, so that a slow
// machine does not end a term.
func standstill() time.Time { return time.Unix(1_000_000, 0) }

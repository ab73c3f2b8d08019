package relay

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
)

// catchingUp is a relay that holds the slot, and whose stream is behind the position now. Rows 1 to 3 of a key
// were claimed from the table and are dead letters.
type catchingUp struct {
	*testing.T
	core *core
	now  uint64
	key  string
	// writer has written all rows that are fetched, but for those in rewriter.
	writer   uint32
	rewriter map[int64]uint32
	// more: a fetch ends before the last row.
	more bool
	// end is the first transaction that a snapshot does not know, where it does not know all of them.
	end uint32
	// from is where the last fetch began.
	from int64
}

func newCatchingUp(t *testing.T) *catchingUp {
	c := &catchingUp{T: t, core: newCore(100, defaultBounds(), newTestMetrics(t)), now: 1000, key: "k", writer: 50, rewriter: map[int64]uint32{}}
	c.core.publisherReady(true)
	c.core.tookSlot(holding{boundary: 9, pid: 1, start: 10, walEnd: 20})
	c.core.streamLive(true)
	m := c.claims(time.Now(), 1, 2, 3)
	for id := int64(1); id <= 3; id++ {
		c.wantLeaves(m, id)
		m = c.settles(m, store.DeadLetter)
	}
	return c
}

func (c *catchingUp) row(id int64, available time.Time) *outbox.Message {
	return &outbox.Message{ID: id, MessageID: outbox.UUID{byte(id)}, OrderingKey: &c.key, SchemaVersion: 1, AvailableAt: available}
}

// claims has a claim bring rows, and returns what leaves.
func (c *catchingUp) claims(due time.Time, ids ...int64) *outbox.Message {
	c.Helper()
	sweep := c.core.beginSweep(100)
	defer sweep.end()
	page := store.Page{Position: c.now}
	for _, id := range ids {
		page.Messages = append(page.Messages, c.row(id, due.Add(time.Minute)))
	}
	return only(c.T, sweep.claimed(page, time.Minute, false))
}

// fetches has a fetch of the key read rows, of which one has a time or a lease, and returns what leaves.
func (c *catchingUp) fetches(meanwhile func(), timed int64, ids ...int64) *outbox.Message {
	c.Helper()
	sweep := c.core.beginSweep(100)
	defer sweep.end()
	places, _ := sweep.takeKeys()
	if len(places) != 1 {
		c.Fatalf("fetches %v, want the key", places)
	}
	c.from = places[0].After
	if meanwhile != nil {
		meanwhile()
	}
	rows := store.KeyRows{Place: places[0]}
	for _, id := range ids {
		if id > places[0].After {
			m := c.row(id, time.Time{})
			if id == timed {
				m.AvailableAt = time.Now().Add(time.Minute)
			}
			rows.Rows = append(rows.Rows, store.KeyRow{Message: m, WrittenBy: cmp.Or(c.rewriter[id], c.writer), Ready: id != timed, Read: true})
		}
	}
	rows.More = c.more
	return only(c.T, sweep.keysFetched(store.KeyPage{Snapshot: c.snapshot(), Position: c.now, Keys: []store.KeyRows{rows}}, time.Now()))
}

// snapshot sees what the writer has written, and those in rewriter.
func (c *catchingUp) snapshot() store.Snapshot {
	c.Helper()
	end := c.writer + 1
	for _, xid := range c.rewriter {
		end = max(end, xid+1)
	}
	end = cmp.Or(c.end, end)
	s, err := store.ParseSnapshot(fmt.Sprintf("%d:%d:", end, end))
	if err != nil {
		c.Fatal(err)
	}
	return s
}

func only(t *testing.T, publish []*outbox.Message) *outbox.Message {
	t.Helper()
	switch len(publish) {
	case 0:
		return nil
	case 1:
		return publish[0]
	}
	t.Fatalf("%d messages of one key leave", len(publish))
	return nil
}

// settles has the broker confirm or refuse a message, and the row written. It returns what leaves then.
func (c *catchingUp) settles(m *outbox.Message, as store.Action) *outbox.Message {
	return c.settlesAfter(nil, m, as)
}

// settlesAfter has something happen before the core hears that the row was written.
func (c *catchingUp) settlesAfter(meanwhile func(), m *outbox.Message, as store.Action) *outbox.Message {
	c.Helper()
	outcome := outbox.Confirmed
	if as == store.DeadLetter {
		outcome = outbox.Impossible
	}
	settlement, _, next := c.core.resolved(outbox.Result{Message: m, Outcome: outcome}, store.Decision{Action: as})
	if meanwhile != nil {
		meanwhile()
	}
	if more := c.core.settled([]store.Settlement{settlement}, false); len(more) > 0 {
		return more[0]
	}
	return next
}

func (c *catchingUp) wantLeaves(m *outbox.Message, id int64) {
	c.Helper()
	if m == nil || m.ID != id {
		c.Fatalf("%v leaves, want row %d", m, id)
	}
}

// wantStays: nothing may leave at this moment, such as beside or before another row.
func (c *catchingUp) wantStays(m *outbox.Message, when string) {
	c.Helper()
	if m != nil {
		c.Fatalf("row %d leaves %s", m.ID, when)
	}
}

// wantOrder confirms what leaves, one after the other.
func (c *catchingUp) wantOrder(m *outbox.Message, want ...int64) {
	c.Helper()
	var got []int64
	for m != nil {
		got = append(got, m.ID)
		m = c.settles(m, store.Delete)
	}
	if !slices.Equal(got, want) {
		c.Errorf("rows %v leave, want %v", got, want)
	}
}

func TestWhatIsSentBackLeavesBeforeLaterRowsWhileTheStreamIsBehind(t *testing.T) {
	c := newCatchingUp(t)
	first := c.claims(time.Now(), 1) // the first that was sent back is due
	c.wantStays(c.fetches(nil, 1, 1, 2, 3, 10), "beside row 1")
	c.wantOrder(first, 1, 2, 3, 10)
}

func TestWhatIsSentBackWhileAFetchIsOpenIsNotOvertakenByIt(t *testing.T) {
	c := newCatchingUp(t)
	first := c.claims(time.Now(), 1)
	c.wantStays(c.fetches(nil, 1, 1, 2, 3), "beside row 1")
	second := c.settles(first, store.Delete)
	c.wantLeaves(second, 2)
	c.core.streamed(c.row(10, time.Time{}), 500, true)
	var third *outbox.Message
	diesAndIsSentBack := func() { third = c.settles(second, store.DeadLetter) }
	c.wantStays(c.fetches(diesAndIsSentBack, 2, 2, 3, 10), "beside row 3")
	c.wantLeaves(third, 3)
	c.wantOrder(third, 3)
	c.wantStays(c.fetches(nil, 2, 2, 10), "before row 2, which is for a claim to bring")
	second = c.claims(time.Now(), 2)
	c.fetches(nil, 2, 2, 10)
	c.wantOrder(second, 2, 10)
}

func TestWhatIsSentBackComesBeforeWhatIsQueued(t *testing.T) {
	c := newCatchingUp(t)
	tenth := c.fetches(nil, 0, 10, 11, 12)
	c.wantLeaves(tenth, 10)
	c.wantStays(c.claims(time.Now(), 1), "beside row 10")
	first := c.settles(tenth, store.Delete)
	c.wantLeaves(first, 1)
	c.fetches(nil, 1, 1, 2, 3, 11, 12)
	c.wantOrder(first, 1, 2, 3, 11, 12)
}

// The stream brings what was sent back, before it has passed the position at which the row was seen.
func TestWhatTheStreamBringsAnewHoldsLaterRowsBack(t *testing.T) {
	c := newCatchingUp(t)
	c.core.mu.gate.suspicious = false // a pass has shown which keys have rows
	c.fetches(nil, 0)
	if _, waits := c.core.mu.gate.keys[c.key]; waits {
		t.Fatal("the key still goes by the table")
	}
	for id := int64(1); id <= 3; id++ { // as they were written first
		if m, _ := c.core.streamed(c.row(id, time.Time{}), c.now-100, true); m != nil {
			t.Errorf("row %d leaves again", id)
		}
	}
	sent := c.row(1, time.Now())
	sent.XID = 7
	if m, _ := c.core.streamed(sent, c.now+5, true); m != nil {
		t.Errorf("row %d leaves though it is for a claim to bring", m.ID)
	}
	if m, _ := c.core.streamed(c.row(10, time.Time{}), c.now+15, true); m != nil {
		t.Errorf("row %d leaves before row 1", m.ID)
	}
}

// Dead letters that were sent back together come before and after what a fetch has read, which goes on behind that.
func TestWhatIsSentBackAroundAFetchKeepsItsOrder(t *testing.T) {
	c := newCatchingUp(t)
	c.more = true
	fifth := c.fetches(nil, 0, 5)
	c.wantLeaves(fifth, 5)
	c.more = false
	c.rewriter = map[int64]uint32{1: 60, 7: 60} // row 7 died long ago
	c.wantStays(c.fetches(nil, 1, 1, 5, 7), "beside row 5")
	c.wantStays(c.settles(fifth, store.Delete), "before row 1")
	c.wantStays(c.fetches(nil, 1, 1, 7), "before row 1, which is for a claim to bring")
	first := c.claims(time.Now(), 1)
	c.fetches(nil, 1, 1, 7)
	c.wantOrder(first, 1, 7)
}

// A row may be older than half of all transaction ids: no snapshot knows its transaction any more.
func TestARowOfAnAgeThatNoSnapshotKnowsIsReadOnce(t *testing.T) {
	c := newCatchingUp(t)
	c.more = true
	fifth := c.fetches(nil, 0, 5)
	c.rewriter = map[int64]uint32{7: 1 << 30}
	c.end = 100
	c.fetches(nil, 0, 5, 7) // reads on from row 5, and finds a row that may have been sent back
	c.fetches(nil, 0, 5)    // from the oldest on, as far as a page goes
	c.more = false
	c.fetches(nil, 0, 5, 7)
	c.wantOrder(fifth, 5, 7)
}

// Nor are rows that are in memory looked at.
func TestRowsInMemoryHaveNoKeyReadAnew(t *testing.T) {
	c := newCatchingUp(t)
	c.more, c.end = true, 100
	c.rewriter = map[int64]uint32{5: 1 << 30, 6: 1<<30 + 1, 7: 1<<30 + 2}
	c.fetches(nil, 0, 5, 6, 7)
	c.core.mu.gate.found(c.key, false)
	c.fetches(nil, 0, 5) // a page from the oldest on
	c.fetches(nil, 0, 5, 6, 7)
	c.fetches(nil, 0, 5, 6, 7)
	if c.from != 7 {
		t.Errorf("reads on from %d, want 7", c.from)
	}
}

// To begin anew for each row that was inserted since would read what is dead of a hot key again and again.
func TestAFetchReadsOnWithWhatWasInsertedSince(t *testing.T) {
	c := newCatchingUp(t)
	c.more = true
	fifth := c.fetches(nil, 0, 5)
	c.more = false
	c.rewriter = map[int64]uint32{20: 60}
	c.fetches(nil, 0, 5, 20)
	c.wantOrder(fifth, 5, 20)
}

// The stream may bring what was sent back before the relay hears that it is a dead letter.
func TestWhatIsSentBackBeforeItsDeathIsKnownHoldsLaterRowsBack(t *testing.T) {
	c := newCatchingUp(t)
	c.core.mu.gate.suspicious = false // a pass has shown which keys have rows
	first := c.claims(time.Now(), 1)
	c.fetches(nil, 0) // nothing follows in the table
	c.core.dueBegan()
	sentBack := func() {
		for _, row := range []*outbox.Message{c.row(1, time.Now()), c.row(2, time.Time{})} {
			if m, _ := c.core.streamed(row, c.now+5, true); m != nil {
				t.Errorf("row %d leaves beside row 1", m.ID)
			}
		}
	}
	c.wantStays(c.settlesAfter(sentBack, first, store.DeadLetter), "before row 1, which is for a claim to bring")
	if !c.core.view(100).DueMoved {
		t.Error("nothing asks for row 1")
	}
	first = c.claims(time.Now(), 1)
	c.fetches(nil, 1, 1, 2)
	c.wantOrder(first, 1, 2)
}

// A fetch may have read a row before it died.
func TestADeadLetterThatAFetchHasReadBeforeStaysOne(t *testing.T) {
	c := newCatchingUp(t)
	fourth := c.fetches(nil, 0, 4, 5)
	c.wantLeaves(fourth, 4)
	c.core.streamed(c.row(10, time.Time{}), 500, true)
	var fifth *outbox.Message
	dies := func() { fifth = c.settles(fourth, store.DeadLetter) }
	c.wantStays(c.fetches(dies, 0, 4, 5, 10), "beside row 5")
	c.wantOrder(fifth, 5)
	c.wantOrder(c.fetches(nil, 0, 10), 10)
}

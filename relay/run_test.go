package relay

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
)

// claimer is a core without the slot, which has claimed rows 1 to 4 of a key.
type claimer struct {
	*testing.T
	core *core
	now  time.Time
	head *outbox.Message
}

func newClaimer(t *testing.T) *claimer {
	counts, err := newMetrics(prometheus.NewRegistry(), func() float64 { return 0 }, func() float64 { return 0 })
	if err != nil {
		t.Fatal(err)
	}
	c := &claimer{T: t, core: newCore(100, defaultBounds(), counts), now: time.Unix(1_000_000, 0)}
	c.core.clock = func() time.Time { return c.now }
	c.core.publisherReady(true)
	c.head = c.claims(1, 2, 3, 4)
	return c
}

// claims brings rows of the key, and returns the one to publish.
func (c *claimer) claims(ids ...int64) *outbox.Message {
	c.Helper()
	key := "k"
	var page store.Page
	sweep := c.core.beginSweep(100)
	defer sweep.end()
	for _, id := range ids {
		page.Messages = append(page.Messages, &outbox.Message{
			ID: id, MessageID: outbox.UUID{byte(id)}, OrderingKey: &key, AvailableAt: c.now.Add(time.Minute), PossibleDuplicate: id == 3,
		})
	}
	publish := sweep.claimed(page, time.Minute, false)
	if len(publish) != 1 || publish[0].ID != ids[0] {
		c.Fatalf("publishes %v", publish)
	}
	return publish[0]
}

// resolves returns nil for a row of which nothing is to be written.
func (c *claimer) resolves(m *outbox.Message, outcome outbox.Outcome) (*store.Settlement, *outbox.Message) {
	policy := store.Policy{MaxRetries: 3, BackoffTime: time.Minute, MaxBackoff: time.Hour}
	result := outbox.Result{Message: m, Outcome: outcome}
	settlement, write, next := c.core.resolved(result, store.Decide(result, policy, 0))
	if !write {
		return nil, next
	}
	return &settlement, next
}

// wantGivenUp: these rows are to be released as they were, and the window holds them until they are.
func (c *claimer) wantGivenUp(want ...int64) {
	c.Helper()
	released := c.core.takeGivenUp()
	var ids []int64
	for _, s := range released {
		ids = append(ids, s.Message.ID)
		if s.Decision.Action != store.Release || s.Message.PossibleDuplicate != (s.Message.ID == 3) {
			c.Errorf("row %d: %+v, possible duplicate %v", s.Message.ID, s.Decision, s.Message.PossibleDuplicate)
		}
	}
	slices.Sort(ids)
	if !slices.Equal(ids, want) {
		c.Errorf("gives up %v, want %v", ids, want)
	}
	if c.core.inFlight() < len(want) {
		c.Errorf("%d messages in memory, of which %d are to be released", c.core.inFlight(), len(want))
	}
	c.core.settled(released, false)
}

func (c *claimer) wantIdle() {
	c.Helper()
	if !c.core.idle() || c.core.mu.bytes != 0 || len(c.core.mu.registry.rows) != 0 || len(c.core.mu.gate.keys) != 0 {
		c.Errorf("%d messages, %d bytes, registry %v, gate %v", c.core.mu.messages, c.core.mu.bytes, c.core.mu.registry.rows, c.core.mu.gate.keys)
	}
}

func TestARunLeavesOneByOneAndTheNextIsAskedForAtItsEnd(t *testing.T) {
	c := newClaimer(t)
	m := c.head
	for id := int64(1); id <= 4; id++ {
		if m == nil || m.ID != id {
			t.Fatalf("%v leaves, want row %d", m, id)
		}
		settlement, next := c.resolves(m, outbox.Confirmed)
		c.core.settled([]store.Settlement{*settlement}, false)
		if moved := c.core.view(100).Moved; moved != (id == 4) {
			t.Errorf("after row %d the next run is asked for: %v", id, moved)
		}
		m = next
	}
	if keys := c.core.takeMoved(10); len(keys) != 1 || keys[0] != "k" || c.core.view(100).Moved {
		t.Errorf("keys %q", keys)
	}
	c.wantIdle()
}

func TestWhatIsBehindAHeadThatDoesNotGoIsReleased(t *testing.T) {
	for what, outcome := range map[string]outbox.Outcome{"refused": outbox.Refused, "unknown": outbox.Unknown, "not sent": outbox.NotSent} {
		c := newClaimer(t)
		settlement, next := c.resolves(c.head, outcome)
		if next != nil {
			t.Errorf("%s: row %d leaves", what, next.ID)
		}
		c.wantGivenUp(2, 3, 4)
		c.core.settled([]store.Settlement{*settlement}, false)
		c.wantIdle()
	}
	c := newClaimer(t)
	settlement, _ := c.resolves(c.head, outbox.Impossible)
	if publish := c.core.settled([]store.Settlement{*settlement}, true); publish != nil {
		t.Errorf("with block %v leaves", publish)
	}
	c.wantGivenUp(2, 3, 4)
	c.wantIdle()
}

func TestAStopReleasesWhatIsQueuedAndWhatIsClaimedAfterwards(t *testing.T) {
	c := newClaimer(t)
	c.core.stop()
	c.wantGivenUp(2, 3, 4)
	if c.core.idle() {
		t.Error("idle with a message in flight")
	}
	settlement, next := c.resolves(c.head, outbox.Confirmed)
	c.core.settled([]store.Settlement{*settlement}, false)
	if next != nil {
		t.Errorf("row %d leaves", next.ID)
	}
	head := c.claims(2, 3, 4)
	c.wantGivenUp(3, 4)
	settlement, _ = c.resolves(head, outbox.Confirmed)
	c.core.settled([]store.Settlement{*settlement}, false)
	c.wantIdle()
}

func TestTheSlotComesAndGoesAndWhatIsQueuedIsReleased(t *testing.T) {
	c := newClaimer(t)
	c.core.tookSlot(holding{pid: 1})
	c.wantGivenUp(2, 3, 4)
	settlement, _ := c.resolves(c.head, outbox.Confirmed)
	c.core.settled([]store.Settlement{*settlement}, false)
	head := c.claims(2, 3, 4)
	c.core.lostSlot()
	c.wantGivenUp(3, 4)
	settlement, _ = c.resolves(head, outbox.Confirmed)
	c.core.settled([]store.Settlement{*settlement}, false)
}

// The broker may take half the lease to answer to what leaves.
func TestNothingLeavesWhenHalfItsLeaseIsOver(t *testing.T) {
	c := newClaimer(t)
	c.now = c.now.Add(29 * time.Second)
	_, second := c.resolves(c.head, outbox.Confirmed)
	if second == nil || !second.TakenAt.Equal(c.now) {
		t.Fatalf("%+v leaves, want row 2", second)
	}
	c.now = c.now.Add(time.Second)
	if _, next := c.resolves(second, outbox.Confirmed); next != nil {
		t.Errorf("row %d leaves", next.ID)
	}
	c.wantGivenUp(3, 4)
	if !c.core.view(100).Moved {
		t.Error("the rows are not asked for again")
	}
}

// TestALongPollIntervalDoesNotLookLikeAStuckSweep: the sweeper beats, however long it waits.
func TestALongPollIntervalDoesNotLookLikeAStuckSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sweeper{core: newCore(10, defaultBounds(), nil), alive: newHeartbeat()}
		s.await(t.Context(), time.Hour)
		if age := s.alive.age(); age > slowAfter {
			t.Errorf("it waits for %s without a beat", age)
		}
	})
}

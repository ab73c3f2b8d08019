package store_test

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
)

// runs is a limit that lets several rows of a key be claimed together.
func runs(rows, run int) store.Limit { return store.Limit{Rows: rows, Bytes: 1 << 30, Run: run} }

// keyed adds n rows of each key, those of one key after one another, with a time or none.
func (f *fixture) keyed(n int, availableAt string, keys ...string) {
	f.Helper()
	f.exec(`INSERT INTO outbox (routing_key, payload, ordering_key, available_at)
		SELECT 'r', to_json(i), key, `+availableAt+` FROM unnest($1::text[]) WITH ORDINALITY k(key, nth), generate_series(1, $2::int) i
		ORDER BY nth, i`, keys, n)
}

func (f *fixture) followDue(limit store.Limit, keys ...string) []*outbox.Message {
	f.Helper()
	page, err := f.store.FollowDue(f.Context(), keys, limit, time.Hour)
	if err != nil {
		f.Fatal(err)
	}
	return page.Messages
}

func TestAClaimTakesARunOfAKey(t *testing.T) {
	f := newFixture(t)
	f.keyed(5, duePast, "a")
	claimed := f.claimDue(runs(100, 3), time.Hour, true)
	equal(t, "a run of three", idsOf(claimed), []int64{1, 2, 3})
	for _, m := range claimed {
		if m.PossibleDuplicate || !one[bool](f, `SELECT available_at = $2 AND possible_duplicate FROM outbox WHERE id = $1`, m.ID, m.AvailableAt) {
			t.Errorf("%+v does not stand as claimed", m)
		}
	}
	equal(t, "while they are out", idsOf(f.claimDue(runs(100, 3), time.Hour, true)), []int64{})
	f.settle(deleted(claimed[0]), released(claimed[1]), released(claimed[2]))
	again := f.claimDue(runs(100, 100), time.Hour, true)
	equal(t, "after the first has left and the others were given back", idsOf(again), []int64{2, 3, 4, 5})
	if again[0].PossibleDuplicate {
		t.Error("a row that was given back is taken for a repeat")
	}
	f.keyed(3, "NULL", "b")
	equal(t, "unclaimed", idsOf(f.claimUnclaimed(runs(100, 2), time.Hour, 0)), []int64{6, 7})
}

func TestARunEndsBeforeARowThatMayNotLeave(t *testing.T) {
	for what, spoil := range map[string]string{
		"waits for its time":   `UPDATE outbox SET available_at = ` + dueFuture + ` WHERE id = 3`,
		"is unclaimed":         `UPDATE outbox SET available_at = NULL WHERE id = 3`,
		"is for a newer relay": `UPDATE outbox SET schema_version = 2 WHERE id = 3`,
	} {
		f := newFixture(t)
		f.keyed(5, duePast, "a", "b")
		f.exec(spoil)
		equal(t, "row 3 "+what, idsOf(f.claimDue(runs(100, 4), time.Hour, true)), []int64{1, 2, 6, 7, 8, 9})
	}
	f := newFixture(t)
	f.keyed(4, "NULL", "a")
	f.exec(`UPDATE outbox SET created_at = now() - interval '1 hour' WHERE id <> 3`)
	equal(t, "row 3 is young", idsOf(f.claimUnclaimed(runs(100, 4), time.Hour, time.Minute)), []int64{1, 2})
}

func TestARunEndsBeforeARowThatAnotherSessionHasLocked(t *testing.T) {
	f := newFixture(t)
	f.keyed(5, duePast, "a", "b")
	tx, err := f.conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM outbox WHERE id IN (3, 6) FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	equal(t, "row 3 and the head of b are locked", idsOf(f.claimDue(runs(100, 10), time.Hour, true)), []int64{1, 2})
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	equal(t, "once they are free", idsOf(f.claimDue(runs(100, 10), time.Hour, true)), []int64{6, 7, 8, 9, 10})
}

func TestRunsShareTheLimitsFairly(t *testing.T) {
	f := newFixture(t)
	f.keyed(9, duePast, "a", "b", "c")
	f.insert(`(routing_key, payload, available_at) VALUES ('r', '1', ` + duePast + `)`)
	claim := func(limit store.Limit) []int64 {
		ids := idsOf(f.claimDue(limit, time.Hour, true))
		f.exec(`UPDATE outbox SET available_at = ` + duePast)
		return ids
	}
	equal(t, "room for the heads", claim(runs(4, 5)), []int64{1, 10, 19, 28})
	equal(t, "one each, as far as there is room", claim(runs(6, 5)), []int64{1, 2, 10, 11, 19, 28})
	equal(t, "two each", claim(runs(10, 5)), []int64{1, 2, 3, 10, 11, 12, 19, 20, 21, 28})
	equal(t, "no more than asked for", claim(runs(1000, 2)), []int64{1, 2, 10, 11, 19, 20, 28})
	f.exec(`UPDATE outbox SET payload = NULL, payload_bytes = decode(repeat('00', 10000), 'hex')`)
	for bytes, want := range map[int][]int64{
		1: {1}, 15_000: {1, 10}, 35_000: {1, 10, 19, 28}, 45_000: {1, 2, 10, 19, 28}, 85_000: {1, 2, 3, 10, 11, 12, 19, 20, 28},
	} {
		equal(t, fmt.Sprint(bytes, " bytes"), claim(store.Limit{Rows: 1000, Bytes: bytes, Run: 3}), want)
	}
}

func TestFollowingClaimsRowsOfKeysAlone(t *testing.T) {
	f := newFixture(t)
	f.keyed(3, duePast, "a", "b", "c", "")
	f.keyed(3, "NULL", "d")
	f.plain(1)
	f.exec(`UPDATE outbox SET available_at = ` + dueFuture + ` WHERE id = 4`) // the head of b
	equal(t, "due", idsOf(f.followDue(runs(100, 2), "a", "b", "", "d", "none", "é")), []int64{1, 2, 10, 11})
	equal(t, "again", idsOf(f.followDue(runs(100, 2), "a", "b", "", "d")), []int64{})
	page, err := f.store.FollowUnclaimed(t.Context(), []string{"c", "d"}, runs(100, 2), time.Hour, store.Unclaimed{UpTo: math.MaxInt64})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "unclaimed", idsOf(page.Messages), []int64{13, 14})
	f.store = open(t, f.url, table(), true)
	f.exec(`INSERT INTO outbox_dead_letter (id, created_at, message_id, attempts, schema_version, routing_key, ordering_key, failure_reason, payload)
		VALUES (1000, now(), gen_random_uuid(), 5, 1, 'r', 'c', 'nack', '1')`)
	equal(t, "of a key with a dead letter", idsOf(f.followDue(runs(100, 2), "c")), []int64{})
}

// claimers are several relays at work on the rows of some keys, of which each has the ids
// key, key + step, key + 2 * step, and so on.
type claimers struct {
	*testing.T
	step int64
	mu   sync.Mutex
	// next is the oldest row of each key that is left; busy are the keys of which
	// somebody has rows.
	next map[string]int64
	busy map[string]bool
	left int
}

// took notes what a claim brought, and what of it is to become of each row: the first
// ones of each key leave, the last back are given back.
func (c *claimers) took(claimed []*outbox.Message, back int) (batch []store.Settlement) {
	c.mu.Lock()
	defer c.mu.Unlock()
	byKey := map[string][]*outbox.Message{}
	for _, m := range claimed {
		byKey[*m.OrderingKey] = append(byKey[*m.OrderingKey], m)
	}
	for key, run := range byKey {
		if c.busy[key] {
			c.Errorf("rows %v of %s are claimed while another relay has some", idsOf(run), key)
		}
		c.busy[key] = true
		for i, m := range run {
			if m.ID != c.next[key]+int64(i)*c.step {
				c.Errorf("rows %v of %s are claimed, the oldest is %d", idsOf(run), key, c.next[key])
				break
			}
		}
		leave := len(run) - back%len(run)
		for i, m := range run {
			if i < leave {
				batch = append(batch, deleted(m))
			} else {
				batch = append(batch, released(m))
			}
		}
	}
	return batch
}

// gaveUp is told right before a batch is written: from then on others may claim.
func (c *claimers) gaveUp(batch []store.Settlement) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range batch {
		key := *s.Message.OrderingKey
		c.busy[key] = false
		if s.Decision.Action == store.Delete {
			c.next[key] = s.Message.ID + c.step
			c.left--
		}
	}
}

func (c *claimers) done() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.left == 0 || c.Failed()
}

func TestConcurrentClaimsNeverShareAKeyNorLeaveARowOut(t *testing.T) {
	f := newFixture(t)
	const keys, rows = 12, 60
	f.exec(`INSERT INTO outbox (routing_key, payload, ordering_key, available_at)
		SELECT 'r', '1', 'key ' || i % $1::int, `+duePast+` FROM generate_series(1, $1::int * $2::int) i`, keys, rows)
	c := &claimers{T: t, step: keys, next: map[string]int64{}, busy: map[string]bool{}, left: keys * rows}
	for i := range keys {
		c.next[fmt.Sprint("key ", (i+1)%keys)] = int64(i + 1)
	}
	var group sync.WaitGroup
	for who := range 4 {
		db := open(t, f.url, table(), false)
		group.Go(func() {
			for round := who; !c.done(); round++ {
				limit := runs(1+round%30, 1+round%7)
				page, err := db.ClaimDue(t.Context(), limit, time.Hour, true)
				if err == nil && len(page.Messages) == 0 {
					page, err = db.FollowDue(t.Context(), []string{"key 1", "key 5", "key 7"}, limit, time.Hour)
				}
				if err != nil {
					t.Error(err)
					return
				}
				batch := c.took(page.Messages, round)
				c.gaveUp(batch)
				if _, err := db.Settle(t.Context(), batch); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	equal(t, "left", f.ids("true"), []int64{})
}

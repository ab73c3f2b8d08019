package store_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
)

const (
	duePast   = `now() - interval '1 minute'`
	dueFuture = `now() + interval '1 hour'`
)

func TestNextDueTellsWhenSomethingIsDue(t *testing.T) {
	f := newFixture(t)
	next := func() time.Duration {
		t.Helper()
		d, err := f.store.NextDue(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	f.plain(2)
	if d := next(); d != 24*time.Hour {
		t.Errorf("nothing has a time: %s", d)
	}
	f.insert(`(routing_key, payload, available_at) VALUES ('r', '1', 'infinity')`)
	if d := next(); d != 24*time.Hour {
		t.Errorf("never due: %s", d)
	}
	f.insert(`(routing_key, payload, available_at) VALUES ('r', '1', clock_timestamp() + interval '1 hour')`)
	if d := next(); d > time.Hour || d < 50*time.Minute {
		t.Errorf("due in an hour: %s", d)
	}
	f.insert(`(routing_key, payload, available_at) VALUES ('r', '1', '-infinity')`)
	if d := next(); d > 0 {
		t.Errorf("due now: %s", d)
	}
}

func TestClaimDueTakesRowsWhoseTimeHasCome(t *testing.T) {
	f := newFixture(t)
	due := f.insert(`(routing_key, payload, available_at) VALUES ('r', '1', ` + duePast + `)`)
	always := f.insert(`(routing_key, payload, available_at) VALUES ('r', '1', '-infinity')`)
	f.insert(`(routing_key, payload, available_at) VALUES ('r', '1', ` + dueFuture + `)`)
	f.insert(`(routing_key, payload, available_at) VALUES ('r', '1', 'infinity')`)
	f.insert(`(routing_key, payload) VALUES ('r', '1')`)
	f.insert(`(routing_key, payload, available_at, schema_version) VALUES ('r', '1', ` + duePast + `, 2)`)
	f.insert(`(routing_key, payload, available_at, ordering_key) VALUES ('r', '1', ` + duePast + `, 'k')`)
	equal(t, "claimed", idsOf(f.claimDue(roomy(), time.Hour, false)), []int64{due, always})
	equal(t, "claimed again", idsOf(f.claimDue(roomy(), time.Hour, false)), []int64{})
}

func TestClaimSetsLeaseAndDuplicateAndReturnsTheOldMark(t *testing.T) {
	f := newFixture(t)
	fresh := f.insert(`(routing_key, payload, available_at, attempts) VALUES ('r', '1', ` + duePast + `, 3)`)
	marked := f.insert(`(routing_key, payload, available_at, possible_duplicate) VALUES ('r', '1', ` + duePast + `, true)`)
	claimed := f.claimDue(roomy(), time.Hour, false)
	equal(t, "claimed", idsOf(claimed), []int64{fresh, marked})
	if claimed[0].PossibleDuplicate || !claimed[1].PossibleDuplicate || claimed[0].Attempts != 3 {
		t.Errorf("%+v, %+v", claimed[0], claimed[1])
	}
	for _, m := range claimed {
		if !one[bool](f, `SELECT available_at = $2 AND possible_duplicate AND available_at - now() BETWEEN '59 minutes' AND '61 minutes'
			FROM outbox WHERE id = $1`, m.ID, m.AvailableAt) {
			t.Errorf("row %d does not stand as claimed", m.ID)
		}
	}
}

func TestClaimUnclaimedTakesRowsOfAnAgeWithoutALease(t *testing.T) {
	f := newFixture(t)
	old := f.insert(`(routing_key, payload, created_at) VALUES ('r', '1', now() - interval '10 minutes')`)
	keyed := f.insert(`(routing_key, payload, created_at, ordering_key) VALUES ('r', '1', now() - interval '10 minutes', 'k')`)
	f.insert(`(routing_key, payload, created_at, ordering_key) VALUES ('r', '1', now() - interval '10 minutes', 'k')`)
	f.insert(`(routing_key, payload, created_at, available_at) VALUES ('r', '1', now() - interval '10 minutes', ` + duePast + `)`)
	f.insert(`(routing_key, payload, created_at, schema_version) VALUES ('r', '1', now() - interval '10 minutes', 2)`)
	young := f.insert(`(routing_key, payload) VALUES ('r', '1')`)
	equal(t, "five minutes old", idsOf(f.claimUnclaimed(roomy(), time.Hour, 5*time.Minute)), []int64{old, keyed})
	page, err := f.store.ClaimUnclaimed(t.Context(), roomy(), time.Hour, store.Unclaimed{UpTo: young - 1})
	if err != nil || len(page.Messages) != 0 {
		t.Errorf("up to the id before: %v, %v", idsOf(page.Messages), err)
	}
	equal(t, "of any age", idsOf(f.claimUnclaimed(roomy(), time.Hour, 0)), []int64{young})
}

func TestClaimTakesOnlyTheFirstRowOfAKey(t *testing.T) {
	f := newFixture(t)
	first := f.insert(`(routing_key, payload, available_at, ordering_key) VALUES ('r', '1', ` + duePast + `, 'a')`)
	second := f.insert(`(routing_key, payload, available_at, ordering_key) VALUES ('r', '1', ` + duePast + `, 'a')`)
	f.insert(`(routing_key, payload, available_at, ordering_key) VALUES ('r', '1', ` + dueFuture + `, 'waits')`)
	f.insert(`(routing_key, payload, available_at, ordering_key) VALUES ('r', '1', ` + duePast + `, 'waits')`)
	f.insert(`(routing_key, payload, ordering_key, schema_version) VALUES ('r', '1', 'newer', 2)`)
	f.insert(`(routing_key, payload, available_at, ordering_key) VALUES ('r', '1', ` + duePast + `, 'newer')`)
	empty := f.insert(`(routing_key, payload, available_at, ordering_key) VALUES ('r', '1', ` + duePast + `, '')`)
	claimed := f.claimDue(roomy(), time.Hour, true)
	equal(t, "claimed", idsOf(claimed), []int64{first, empty})
	equal(t, "while the first is out", idsOf(f.claimDue(roomy(), time.Hour, true)), []int64{})
	f.settle(deleted(claimed[0]))
	equal(t, "after the first", idsOf(f.claimDue(roomy(), time.Hour, true)), []int64{second})
}

func TestBlockHoldsUpKeysWithADeadLetter(t *testing.T) {
	f := newFixture(t)
	stuck := f.insert(`(routing_key, payload, ordering_key) VALUES ('r', '1', 'stuck')`)
	f.settle(dead(f.rowsOf(roomy(), "stuck")[0].Rows[0].Message, false))
	f.insert(`(routing_key, payload, ordering_key) VALUES ('r', '1', 'stuck')`)
	due := f.insert(`(routing_key, payload, ordering_key, available_at) VALUES ('r', '1', 'stuck', ` + duePast + `)`)
	free := f.insert(`(routing_key, payload, ordering_key, available_at) VALUES ('r', '1', 'free', ` + duePast + `)`)
	f.exec(`DELETE FROM outbox WHERE id = $1`, due-1)
	cont := f.store
	f.store = open(t, f.url, table(), true)
	heads, _, err := f.store.KeyHeads(t.Context(), "", 10)
	if err != nil || len(heads) != 2 || heads[1].Key != "stuck" || heads[1].Ready {
		t.Errorf("heads %+v, %v", heads, err)
	}
	equal(t, "with block", idsOf(f.claimDue(roomy(), 0, true)), []int64{free})
	f.store = cont
	equal(t, "without", idsOf(f.claimDue(roomy(), time.Hour, true)), []int64{due, free})
	if stuck >= due {
		t.Error("ids do not grow")
	}
}

func TestConcurrentClaimsAreDisjoint(t *testing.T) {
	f := newFixture(t)
	f.plain(400)
	f.exec(`UPDATE outbox SET available_at = ` + duePast)
	other := open(t, f.url, table(), false)
	var claimed [4][]*outbox.Message
	var group sync.WaitGroup
	for i := range claimed {
		claimer := []*store.Store{f.store, other}[i%2]
		group.Go(func() {
			for {
				page, err := claimer.ClaimDue(t.Context(), store.Limit{Rows: 7, Bytes: 1 << 20}, time.Hour, true)
				if err != nil {
					t.Error(err)
				}
				if len(page.Messages) == 0 {
					return
				}
				claimed[i] = append(claimed[i], page.Messages...)
			}
		})
	}
	group.Wait()
	all := idsOf(slices.Concat(claimed[:]...))
	slices.Sort(all)
	equal(t, "claimed by all", all, f.ids("true"))
}

func TestClaimSkipsLockedRows(t *testing.T) {
	f := newFixture(t)
	f.plain(3)
	f.exec(`UPDATE outbox SET available_at = ` + duePast)
	tx, err := f.conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM outbox WHERE id = 2 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	equal(t, "claimed", idsOf(f.claimDue(roomy(), time.Hour, true)), []int64{1, 3})
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	equal(t, "once it is free", idsOf(f.claimDue(roomy(), time.Hour, true)), []int64{2})
}

func TestLimitsAreKeptAndOneRowIsAlwaysRead(t *testing.T) {
	f := newFixture(t)
	f.exec(`INSERT INTO outbox (routing_key, payload_bytes) SELECT 'r', decode(repeat('00', 10000), 'hex') FROM generate_series(1, 6)`)
	limits := []struct {
		limit store.Limit
		want  int
	}{
		{store.Limit{Rows: 2, Bytes: 1 << 20}, 2},
		{store.Limit{Rows: 100, Bytes: 1}, 1},
		{store.Limit{Rows: 100, Bytes: 25_000}, 3}, // the third begins within
		{store.Limit{Rows: 100, Bytes: 1 << 20}, 6},
	}
	for _, l := range limits {
		if got := f.leftovers(0, l.limit).Messages; len(got) != l.want {
			t.Errorf("leftovers %+v: %d rows", l.limit, len(got))
		}
		if got := f.claimUnclaimed(l.limit, 0, 0); len(got) != l.want { // a lease of no time: due at once
			t.Errorf("claim unclaimed %+v: %d rows", l.limit, len(got))
		}
		f.exec(`UPDATE outbox SET available_at = ` + duePast)
		if got := f.claimDue(l.limit, time.Hour, true); len(got) != l.want {
			t.Errorf("claim due %+v: %d rows", l.limit, len(got))
		}
		if n := one[int](f, `SELECT count(*)::int FROM outbox WHERE available_at > now()`); n != l.want {
			t.Errorf("claim due %+v: %d rows have a lease", l.limit, n)
		}
		f.exec(`UPDATE outbox SET available_at = NULL`)
	}
}

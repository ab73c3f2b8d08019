package core

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Covers the bounds on number and bytes, and that forgotten keys make room.
func TestRememberedKeysAreBounded(t *testing.T) {
	for name, length := range map[string]int{"short": 10, "long": 2684} {
		t.Run(name, func(t *testing.T) {
			const most = 10_000
			ks := newKeys(most)
			key := func(n int) string { return fmt.Sprintf("%0*d", length, n) }
			remembered := 0
			for ks.remember(key(remembered)) != nil {
				remembered++
			}
			if want := min(most, mostKeyBytes/length); remembered != want {
				t.Errorf("%d keys are remembered, want %d", remembered, want)
			}
			if ks.remember(strings.Repeat("x", length)) != nil {
				t.Error("one key more than the limit is remembered")
			}
			for n := range remembered {
				ks.forget(key(n))
			}
			if ks.bytes != 0 || ks.remember(key(0)) == nil {
				t.Errorf("%d bytes are counted for no key", ks.bytes)
			}
		})
	}
}

// The pass may have read the head before the look-up was requested.
func TestAPassParksNoRequestedKey(t *testing.T) {
	c := leading(100)
	key := "k"
	postponed := outbox.Candidate{Ref: outbox.Ref{ID: 1}, OrderingKey: &key, Due: new(time.Now().Add(time.Hour))}
	read := func(asked []string) {
		found := Found{Asked: asked, Runs: []outbox.Run{{postponed}}, Each: 2, Epoch: c.View().Epoch}
		c.ChooseRuns(found, 1, Most{Rows: 1, Bytes: 1})
	}
	wanted := func(what string, want ...string) {
		t.Helper()
		if taken := c.TakeWanted(10, false, false); !slices.Equal(taken, want) {
			t.Errorf("%s: %v are looked up, want %v", what, taken, want)
		}
	}
	late := &outbox.Message{Row: outbox.Row{ID: 1, OrderingKey: &key}}
	c.mu.keys.add(key, &keyState{place: draining, line: []*outbox.Message{late}})
	c.mu.keys.released(late) // the pass read the row before it was deleted
	read(nil)
	wanted("its row was settled meanwhile", key)
	read([]string{key})
	wanted("its row must not leave yet")
	read(nil)
	wanted("that is known already")
}

// Whatever keeps many keys from leaving, the next look-up takes a key with a fresh row.
func TestManyKeysThatCannotLeaveDelayNoOther(t *testing.T) {
	const many = 200
	for name, tc := range map[string]struct {
		ready, invisible, lock, due, aside, pass bool
		again, yielding                          int
	}{
		"their heads are scheduled or retried":        {},
		"other sessions have locked their rows":       {ready: true, again: many},
		"their rows are not visible":                  {invisible: true, again: many},
		"their heads are rejected, and retried later": {ready: true, lock: true, yielding: many},
		"their heads are retried again":               {due: true, yielding: many},
		"their heads are set aside":                   {ready: true, lock: true, aside: true, yielding: many},
		"a pass found more of them than fit a claim":  {ready: true, pass: true, yielding: many},
	} {
		t.Run(name, func(t *testing.T) {
			c := leading(1000)
			var asked []string
			var runs []outbox.Run
			var locked []*outbox.Message
			for i := range many {
				key := fmt.Sprint("failing-", i)
				if !tc.pass {
					c.mu.keys.add(key, &keyState{place: inClaim, left: c.mu.unseen.seq + 1})
				}
				asked = append(asked, key)
				if !tc.invisible {
					runs = append(runs, outbox.Run{{Ref: outbox.Ref{ID: int64(i)}, OrderingKey: &key, Ready: tc.ready}})
				}
				if tc.lock {
					locked = append(locked, &outbox.Message{Row: outbox.Row{ID: int64(i), OrderingKey: &key}})
				}
			}
			keys := many
			if tc.pass {
				asked, keys = nil, 0
			}
			most := Most{Rows: many, Bytes: 1 << 20}
			found := Found{Asked: asked, Runs: runs, Each: 2, Epoch: c.View().Epoch}
			claim := c.ChooseRuns(found, keys, most)
			lock(c, claim, locked...)
			for _, m := range locked {
				c.Resolved(outbox.Result{Message: m, Outcome: outbox.Rejected})
			}
			for _, s := range claim.Done(!tc.aside).Settle {
				c.SetAside(s)
			}
			if tc.aside {
				found.Asked = c.TakeWanted(many, false, false)
				c.ChooseRuns(found, many, most)
			}
			if tc.due || tc.aside {
				wantKeys(c, found.Asked...)
			}
			if again := c.View().Again; again != tc.again {
				t.Errorf("%d keys are looked up again, want %d", again, tc.again)
			}
			key := "fresh"
			c.Streamed(&outbox.Message{Row: outbox.Row{ID: many, OrderingKey: &key}, XID: 12}, 300, false)
			if taken := c.TakeWanted(many, false, false); !slices.Equal(taken, []string{key}) {
				t.Errorf("%v are looked up, want the fresh key alone", taken)
			}
			if n := c.View().Yielding; n != tc.yielding {
				t.Errorf("%d keys yield, want %d", n, tc.yielding)
			}
			if taken := c.TakeWanted(2*many, true, true); len(taken) != tc.again+tc.yielding {
				t.Errorf("%d keys are looked up in their turn, want %d", len(taken), tc.again+tc.yielding)
			}
		})
	}
}

// Each key of a backlog has more rows after each claim. A key with one row does not wait for all of them.
func TestAKeyWithoutABacklogIsInTheNextLookUp(t *testing.T) {
	c := leading(1000)
	var asked []string
	var runs []outbox.Run
	var locked []*outbox.Message
	for i := range int64(100) {
		key := fmt.Sprint("backlog-", i)
		c.mu.keys.add(key, &keyState{place: inClaim})
		asked, runs = append(asked, key), append(runs, outbox.Run{{Ref: outbox.Ref{ID: i}, OrderingKey: &key, Ready: true}})
		locked = append(locked, &outbox.Message{Row: outbox.Row{ID: i, OrderingKey: &key}})
	}
	claim := c.ChooseRuns(Found{Asked: asked, Runs: runs, Each: 1, Epoch: c.View().Epoch}, 100, Most{Rows: 100, Bytes: 1 << 20})
	lock(c, claim, locked...)
	for _, m := range locked {
		c.Resolved(outbox.Result{Message: m, Outcome: outbox.Confirmed})
	}
	claim.Done(true)
	c.mu.keys.unknownKeysMayWait = true
	for _, calm := range []string{"a", "b"} {
		c.Streamed(&outbox.Message{Row: outbox.Row{ID: 1000, OrderingKey: &calm}, XID: 12}, 300, false)
	}
	if taken := c.TakeWanted(4, false, false); !slices.Equal(taken, []string{"a", "b", "backlog-0", "backlog-1"}) {
		t.Errorf("%v are looked up first, want half of them without a backlog", taken)
	}
	if taken := c.TakeWanted(1000, false, false); len(taken) != 98 {
		t.Errorf("%d keys are looked up then, want 98", len(taken))
	}
}

// A key that was rejected yields until a message of it has left.
func TestAKeyYieldsUntilAMessageHasLeft(t *testing.T) {
	for outcome, yields := range map[outbox.Outcome]bool{outbox.Rejected: true, outbox.Impossible: true, outbox.Confirmed: false} {
		c := leading(100)
		key := "k"
		wantKeys(c, key)
		run, m := outbox.Run{{Ref: outbox.Ref{ID: 1}, OrderingKey: &key, Ready: true}}, &outbox.Message{Row: outbox.Row{ID: 1, OrderingKey: &key}}
		found := Found{Asked: c.TakeWanted(1, true, false), Runs: []outbox.Run{run}, Each: 1, Epoch: c.View().Epoch}
		claim := c.ChooseRuns(found, 1, Most{Rows: 1, Bytes: 1 << 20})
		lock(c, claim, m)
		c.Resolved(outbox.Result{Message: m, Outcome: outcome})
		claim.Done(true)
		if v := c.View(); (v.Yielding == 1) != yields || (v.Wanted == 1) == yields {
			t.Errorf("after outcome %d: %d keys are looked up, and %d that yield", outcome, v.Wanted, v.Yielding)
		}
	}
}

// A pass may read a row between its confirm and its delete. That is no reason to leave later rows in the table.
func TestAPassLeavesKeysWhoseRowsAreBeingDeletedToTheStream(t *testing.T) {
	key := "k"
	for name, tc := range map[string]struct {
		unlisted, aside, more bool
		goes                  bool
	}{
		"its rows are being deleted": {goes: true},
		"it may have other rows":     {more: true},
		"keys are unknown":           {unlisted: true},
		"its row is set aside":       {aside: true},
	} {
		c := leading(100)
		c.mu.keys.unknownKeysMayWait = false
		m := &outbox.Message{Row: outbox.Row{ID: 1, OrderingKey: &key}}
		c.Streamed(m, 100, false)
		if out, _ := c.Resolved(outbox.Result{Message: m, Outcome: outbox.Confirmed}); len(out.Settle) != 1 {
			t.Fatal("the row is not deleted")
		}
		if c.mu.keys.unknownKeysMayWait = tc.unlisted; tc.aside {
			c.SetAside(outbox.Settlement{Message: m})
		}
		each := 2
		if tc.more {
			each = 1
		}
		head := outbox.Candidate{Ref: m.Ref(), OrderingKey: &key, Ready: true}
		found := Found{Runs: []outbox.Run{{head}}, Each: each, Epoch: c.View().Epoch}
		c.ChooseRuns(found, 1, Most{Rows: 1, Bytes: 1})
		if out, _ := c.Streamed(&outbox.Message{Row: outbox.Row{ID: 2, OrderingKey: &key}}, 200, false); (len(out.Publish) > 0) != tc.goes {
			t.Errorf("%s: the next row is published at once: %t, want %t", name, !tc.goes, tc.goes)
		}
	}
}

// After it, the stream publishes the key's rows again. In every other case the key is looked up again.
func TestAClaimOfAllRowsOfAKeyNeedsNoSecondLookUp(t *testing.T) {
	key := "k"
	for name, tc := range map[string]struct {
		each      int
		meanwhile func(c *Core, first *outbox.Message)
		failed    bool // the commit
		again     bool
	}{
		"all rows":          {each: 3},
		"perhaps more rows": {each: 2, again: true},
		"the commit fails":  {each: 3, failed: true, again: true},
		"the stream left another": {each: 3, again: true, meanwhile: func(c *Core, _ *outbox.Message) {
			c.Streamed(&outbox.Message{Row: outbox.Row{ID: 3, OrderingKey: &key}, XID: 12}, 300, false)
		}},
		"a pass saw the key": {each: 3, again: true, meanwhile: func(c *Core, _ *outbox.Message) {
			c.found(key, outbox.Candidate{OrderingKey: &key, Ready: true}, false, true)
		}},
		"a row is tried later": {each: 3, again: true, meanwhile: func(c *Core, first *outbox.Message) {
			c.Resolved(outbox.Result{Message: first, Outcome: outbox.Rejected})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c := leading(100)
			view, seen := c.View(), snapshot(t, "10:10:")
			c.Saw(seen, view.Epoch, view.ForgottenAt)
			c.mu.keys.unknownKeysMayWait = false
			c.mu.keys.add(key, &keyState{place: inClaim})
			rows := outbox.Run{
				{Ref: outbox.Ref{ID: 1}, OrderingKey: &key, Ready: true},
				{Ref: outbox.Ref{ID: 2}, OrderingKey: &key, Ready: true},
			}
			found := Found{Asked: []string{key}, Runs: []outbox.Run{rows}, Each: tc.each, Snapshot: seen, Epoch: view.Epoch}
			first, second := &outbox.Message{Row: outbox.Row{ID: 1, OrderingKey: &key}}, &outbox.Message{Row: outbox.Row{ID: 2, OrderingKey: &key}}
			claim := c.ChooseRuns(found, 1, Most{Rows: 10, Bytes: 1 << 20})
			lock(c, claim, first, second)
			if tc.meanwhile != nil {
				tc.meanwhile(c, first)
			}
			for _, m := range []*outbox.Message{first, second} {
				if claim.flying[m.Ref()] != nil { // unless the first was rejected
					c.Resolved(outbox.Result{Message: m, Outcome: outbox.Confirmed})
				}
			}
			claim.Done(!tc.failed)
			if again := c.View().Wanted+c.View().Yielding == 1; again != tc.again {
				t.Errorf("looked up again: %t", again)
			}
			_, verdict := c.Streamed(&outbox.Message{Row: outbox.Row{ID: 4, OrderingKey: &key}, XID: 13}, 400, false)
			if direct := len(c.mu.keys.byKey[key].line) == 1; direct == tc.again {
				t.Errorf("published from the stream: %t, %v", direct, verdict)
			}
		})
	}
}

// The stream fills the window while the claim looks for rows.
func TestAClaimDoesNotExceedTheWindow(t *testing.T) {
	const window = 8
	c := leading(window)
	rows, bytes := c.Capacity(4)
	for id := range int64(window - 1) {
		if out, v := c.Streamed(&outbox.Message{Row: outbox.Row{ID: 100 + id}, XID: uint32(1 + id)}, 100, false); len(out.Publish) == 0 {
			t.Fatalf("row %d of %d is not published: %d", id, window, v)
		}
	}
	var found []outbox.Candidate
	for id := range int64(rows) {
		found = append(found, outbox.Candidate{Ref: outbox.Ref{ID: id}, Ready: true})
	}
	c.ChooseRows(found, false, Most{Rows: rows, Bytes: bytes})
	if n := c.View().InFlight; n > window {
		t.Errorf("%d messages are in a window of %d", n, window)
	}
}

// wantKeys asks for look-ups as a sweep of due rows does.
func wantKeys(c *Core, keys ...string) {
	var rows []outbox.Candidate
	for i := range keys {
		rows = append(rows, outbox.Candidate{Ref: outbox.Ref{ID: int64(-1 - i)}, OrderingKey: &keys[i], Due: new(time.Now())})
	}
	c.ChooseRows(rows, true, Most{Rows: 1, Bytes: 1})
}

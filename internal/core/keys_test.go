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
		sweepRuns(c, found, 1, Most{Rows: 1, Bytes: 1})
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
		"a pass found more of them than fit a page":   {ready: true, pass: true, yielding: many},
	} {
		t.Run(name, func(t *testing.T) {
			c := leading(1000)
			var asked []string
			var runs []outbox.Run
			var locked []*outbox.Message
			for i := range many {
				key := fmt.Sprint("failing-", i)
				if !tc.pass {
					c.mu.keys.add(key, &keyState{place: swept, left: c.mu.unseen.seq + 1})
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
			sweepRuns(c, found, keys, most, locked...)
			for _, m := range locked {
				out, _ := c.Resolved(outbox.Result{Message: m, Outcome: outbox.Rejected})
				if !tc.aside {
					c.Settled(out.Settle)
					continue
				}
				c.SetAside(out.Settle[0])
			}
			if tc.aside {
				found.Asked = c.TakeWanted(many, true, false)
				sweepRuns(c, found, many, most)
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

// Each key of a backlog has more rows after each look-up. A key with one row does not wait for all of them.
func TestAKeyWithoutABacklogIsInTheNextLookUp(t *testing.T) {
	c := leading(1000)
	var asked []string
	var runs []outbox.Run
	var locked []*outbox.Message
	for i := range int64(100) {
		key := fmt.Sprint("backlog-", i)
		c.mu.keys.add(key, &keyState{place: swept})
		asked, runs = append(asked, key), append(runs, outbox.Run{{Ref: outbox.Ref{ID: i}, OrderingKey: &key, Ready: true}})
		locked = append(locked, &outbox.Message{Row: outbox.Row{ID: i, OrderingKey: &key}})
	}
	sweepRuns(c, Found{Asked: asked, Runs: runs, Each: 1, Epoch: c.View().Epoch}, 100, Most{Rows: 100, Bytes: 1 << 20}, locked...)
	for _, m := range locked {
		out, _ := c.Resolved(outbox.Result{Message: m, Outcome: outbox.Confirmed})
		c.Settled(out.Settle)
	}
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
		sweepRuns(c, found, 1, Most{Rows: 1, Bytes: 1 << 20}, m)
		out, _ := c.Resolved(outbox.Result{Message: m, Outcome: outcome})
		c.Settled(out.Settle)
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
		sweepRuns(c, found, 1, Most{Rows: 1, Bytes: 1})
		if out, _ := c.Streamed(&outbox.Message{Row: outbox.Row{ID: 2, OrderingKey: &key}}, 200, false); (len(out.Publish) > 0) != tc.goes {
			t.Errorf("%s: the next row is published at once: %t, want %t", name, !tc.goes, tc.goes)
		}
	}
}

// After it, the stream publishes the key's rows again. In every other case the key is looked up again.
func TestALookUpOfAllRowsOfAKeyNeedsNoSecondOne(t *testing.T) {
	key := "k"
	for name, tc := range map[string]struct {
		each      int
		meanwhile func(c *Core, first *outbox.Message, out []*outbox.Message) []*outbox.Message
		again     bool
	}{
		"all rows":          {each: 3},
		"perhaps more rows": {each: 2, again: true},
		"the stream left another": {each: 3, again: true, meanwhile: func(c *Core, _ *outbox.Message, out []*outbox.Message) []*outbox.Message {
			c.Streamed(&outbox.Message{Row: outbox.Row{ID: 3, OrderingKey: &key}, XID: 12}, 300, false)
			return out
		}},
		"a pass saw the key": {each: 3, again: true, meanwhile: func(c *Core, _ *outbox.Message, out []*outbox.Message) []*outbox.Message {
			c.found(key, outbox.Candidate{OrderingKey: &key, Ready: true}, false, true)
			return out
		}},
		"a row is tried later": {each: 3, again: true, meanwhile: func(c *Core, first *outbox.Message, _ []*outbox.Message) []*outbox.Message {
			rejected, _ := c.Resolved(outbox.Result{Message: first, Outcome: outbox.Rejected})
			c.Settled(rejected.Settle)
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c := leading(100)
			view, seen := c.View(), snapshot(t, "10:10:")
			c.Saw(seen, view.Epoch, view.ForgottenAt)
			c.mu.keys.unknownKeysMayWait = false
			c.mu.keys.add(key, &keyState{place: swept})
			rows := outbox.Run{
				{Ref: outbox.Ref{ID: 1}, OrderingKey: &key, Ready: true},
				{Ref: outbox.Ref{ID: 2}, OrderingKey: &key, Ready: true},
			}
			found := Found{Asked: []string{key}, Runs: []outbox.Run{rows}, Each: tc.each, Snapshot: seen, Epoch: view.Epoch}
			first, second := &outbox.Message{Row: outbox.Row{ID: 1, OrderingKey: &key}}, &outbox.Message{Row: outbox.Row{ID: 2, OrderingKey: &key}}
			out := sweepRuns(c, found, 1, Most{Rows: 10, Bytes: 1 << 20}, first, second)
			if tc.meanwhile != nil {
				out.Publish = tc.meanwhile(c, first, out.Publish)
			}
			for len(out.Publish) > 0 {
				next, _ := c.Resolved(outbox.Result{Message: out.Publish[0], Outcome: outbox.Confirmed})
				c.Settled(next.Settle)
				out = next
			}
			if again := c.View().Wanted+c.View().Yielding == 1; again != tc.again {
				t.Errorf("looked up again: %t", again)
			}
			if queued := c.mu.keys.queued; queued != 0 {
				t.Errorf("%d messages are counted in queues", queued)
			}
			_, verdict := c.Streamed(&outbox.Message{Row: outbox.Row{ID: 4, OrderingKey: &key}, XID: 13}, 400, false)
			if direct := len(c.mu.keys.byKey[key].line) == 1; direct == tc.again {
				t.Errorf("published from the stream: %t, %v", direct, verdict)
			}
		})
	}
}

// A requeued row leaves alone if the row behind it cannot follow. Row 5 is confirmed, and its look-up still sees it.
func TestARunEndsBeforeARowThatCannotFollow(t *testing.T) {
	key := "k"
	for name, tc := range map[string]struct {
		second, window int
		meanwhile      func(c *Core, second *outbox.Message)
	}{
		"it is being deleted":       {5, 100, nil},
		"the window is full":        {4, 2, nil},
		"its key was changed":       {4, 100, func(_ *Core, second *outbox.Message) { second.OrderingKey = new("other") }},
		"its body was not read":     {4, 100, func(_ *Core, second *outbox.Message) { second.Unread = 1 << 30 }},
		"it was streamed meanwhile": {4, 100, func(c *Core, _ *outbox.Message) { c.Streamed(&outbox.Message{Row: outbox.Row{ID: 4}}, 1, false) }},
	} {
		c := leading(tc.window)
		row := func(id int) *outbox.Message {
			return &outbox.Message{Row: outbox.Row{ID: int64(id), OrderingKey: &key}}
		}
		c.mu.keys.unknownKeysMayWait = false
		last, first, second := row(5), row(3), row(tc.second)
		c.Streamed(last, 100, false)
		confirmed, _ := c.Resolved(outbox.Result{Message: last, Outcome: outbox.Confirmed})
		requeued := row(3)
		requeued.AvailableAt = new(c.Clock())
		c.Streamed(requeued, 110, false)
		run := outbox.Run{{Ref: first.Ref(), OrderingKey: &key, Ready: true}, {Ref: second.Ref(), OrderingKey: &key, Ready: true}}
		found := Found{Asked: c.TakeWanted(1, false, false), Runs: []outbox.Run{run}, Each: 10, Epoch: c.View().Epoch}
		chosen := c.ChooseRuns(found, 1, Most{Rows: 10, Bytes: 1 << 20})
		if tc.meanwhile != nil {
			tc.meanwhile(c, second)
		}
		if tc.second == 5 {
			c.Settled(confirmed.Settle)
		}
		c.SweptRuns(chosen, Read{Messages: []*outbox.Message{first, second}, Position: 200, Epoch: found.Epoch})
		if line := c.mu.keys.byKey[key].line; len(line) != 1 || line[0] != first {
			t.Errorf("%s: %d rows of the key are in memory", name, len(line))
		}
	}
}

// A row leaves once all rows that it replaces are gone: they could come back, and leave after it. The last row of the
// run was replaced when it was found, and no more when it was read.
func TestAKeyWaitsUntilItsReplacedRowsAreGone(t *testing.T) {
	c, key := leading(100), "k"
	c.mu.keys.add(key, &keyState{place: swept})
	var run outbox.Run
	var rows []*outbox.Message
	for id := range int64(3) {
		run = append(run, outbox.Candidate{Ref: outbox.Ref{ID: id}, OrderingKey: &key, Ready: true, Superseded: true})
		rows = append(rows, &outbox.Message{Row: outbox.Row{ID: id, OrderingKey: &key}, Superseded: id < 2})
	}
	found := Found{Asked: []string{key}, Runs: []outbox.Run{run}, Each: 3, Epoch: c.View().Epoch}
	out := sweepRuns(c, found, 1, Most{Rows: 3, Bytes: 1 << 20}, rows...)
	if len(out.Publish) > 0 {
		t.Error("the row behind them leaves")
	}
	for gone := range 3 {
		if v := c.View(); (v.Wanted+v.Again > 0) != (gone == 2) {
			t.Errorf("%d rows are gone: %d keys are looked up", gone, v.Wanted+v.Again)
		}
		if gone < 2 {
			c.Settled(out.Settle[gone : gone+1])
		}
	}
}

// A requeued row has a lower id than the queue of its key, so the queue waits for it in the table.
func TestARequeuedRowLeavesBeforeTheQueueOfItsKey(t *testing.T) {
	c, key := leading(100), "k"
	c.mu.keys.unknownKeysMayWait = false
	row := func(id int64) *outbox.Message {
		return &outbox.Message{Row: outbox.Row{ID: id, OrderingKey: &key}, XID: 12}
	}
	first, requeued := row(5), row(3)
	requeued.AvailableAt = new(c.Clock())
	for _, m := range []*outbox.Message{first, row(6), requeued} {
		c.Streamed(m, 100, false)
	}
	if out, _ := c.Resolved(outbox.Result{Message: first, Outcome: outbox.Confirmed}); len(out.Publish) > 0 {
		t.Errorf("row %d leaves before the requeued one", out.Publish[0].ID)
	}
}

// Somebody deletes the only row of a key, which was scheduled.
func TestABlockedKeyIsForgottenOnceItsRowIsGone(t *testing.T) {
	c, key := leading(100), "k"
	view, seen := c.View(), snapshot(t, "10:10:")
	c.Saw(seen, view.Epoch, view.ForgottenAt)
	read := func(f Found) {
		f.Each, f.Epoch, f.Snapshot = 2, view.Epoch, seen
		sweepRuns(c, f, 1, Most{Rows: 1, Bytes: 1})
	}
	scheduled := outbox.Run{{Ref: outbox.Ref{ID: 1}, OrderingKey: &key}}
	read(Found{Runs: []outbox.Run{scheduled}, Pass: c.KeysBegan(), First: true, Last: true})
	read(Found{Pass: c.KeysBegan(), First: true, Last: true})
	read(Found{Asked: c.TakeWanted(1, true, false)})
	if n := c.View().Keys; n != 0 {
		t.Errorf("%d keys are remembered", n)
	}
}

// Neither rows without a key fill the memory, nor a few large ones, nor the queues of keys. In the end, it is empty.
func TestMemoryIsBounded(t *testing.T) {
	const window = 200
	for name, tc := range map[string]struct{ keys, size, most int }{
		"rows without a key": {size: 1, most: window}, "large rows": {size: 7 << 20, most: 4},
		"one key": {keys: 1, size: 1, most: 1 + mostQueued}, "three keys": {keys: 3, size: 1, most: 3 + window/2},
	} {
		c, body := leading(window), make([]byte, tc.size)
		c.mu.keys.unknownKeysMayWait = false
		var flying []*outbox.Message
		for id := range 3 * window {
			m := &outbox.Message{Row: outbox.Row{ID: int64(id), Payload: body}, XID: uint32(id)}
			if tc.keys > 0 {
				m.OrderingKey = new(fmt.Sprint(id % tc.keys))
			}
			out, _ := c.Streamed(m, 100, false)
			flying = append(flying, out.Publish...)
		}
		if got := c.View().InFlight; got != tc.most {
			t.Errorf("%s: %d messages are in memory, want %d", name, got, tc.most)
		}
		for ; len(flying) > 0; flying = flying[1:] {
			out, _ := c.Resolved(outbox.Result{Message: flying[0], Outcome: outbox.Confirmed})
			c.Settled(out.Settle)
			flying = append(flying, out.Publish...)
		}
		if w := c.mu.window; w.messages != 0 || w.bytes != 0 || c.mu.keys.queued != 0 {
			t.Errorf("%s: in the end, %d messages and %d bytes are counted, %d messages queue", name, w.messages, w.bytes, c.mu.keys.queued)
		}
	}
}

func TestABacklogLeavesAQuarterOfTheWindowToTheStream(t *testing.T) {
	c := leading(8)
	c.StreamLive(true)
	for id := int64(1); ; id++ {
		if rows, _ := c.Capacity(1); rows == 0 {
			break
		}
		sweep(c, &outbox.Message{Row: outbox.Row{ID: id}})
	}
	if n := c.View().InFlight; n != 6 {
		t.Errorf("%d of 8 places are taken", n)
	}
}

// The stream fills the window while a sweep reads rows.
func TestASweepDoesNotExceedTheWindow(t *testing.T) {
	const window = 8
	c := leading(window)
	rows, _ := c.Capacity(4)
	for id := range int64(window - 1) {
		if out, v := c.Streamed(&outbox.Message{Row: outbox.Row{ID: 100 + id}, XID: uint32(1 + id)}, 100, false); len(out.Publish) == 0 {
			t.Fatalf("row %d of %d is not published: %d", id, window, v)
		}
	}
	var read []*outbox.Message
	for id := range int64(rows) {
		read = append(read, &outbox.Message{Row: outbox.Row{ID: id}})
	}
	if _, n := sweep(c, read...); n != 1 || c.View().InFlight != window {
		t.Errorf("%d of %d rows are handled, %d messages are in a window of %d", n, rows, c.View().InFlight, window)
	}
}

// wantKeys asks for look-ups as a sweep of due rows does.
func wantKeys(c *Core, keys ...string) {
	var rows []outbox.Candidate
	for i := range keys {
		rows = append(rows, outbox.Candidate{Ref: outbox.Ref{ID: int64(-1 - i)}, OrderingKey: &keys[i], Due: new(time.Now())})
	}
	c.ChooseRows(rows, Most{Rows: 1, Bytes: 1})
}

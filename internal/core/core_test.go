package core

import (
	"math"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Whatever its id is, a row that stays in the table asks for a pass that reads it.
func TestARowWithAnyIDAsksForAPass(t *testing.T) {
	for _, id := range []int64{math.MinInt64, math.MinInt64 + 1, -1, 0, 1, math.MaxInt64 - 1, math.MaxInt64} {
		c := New(DefaultLimits(100), Policy{})
		c.TookSlot(Slot{PID: 1})
		if _, ok := c.BacklogBegan(c.View().Epoch); !ok {
			t.Fatal("the pass of the new term does not begin")
		}
		c.Streamed(&outbox.Message{Row: outbox.Row{ID: id}}, 1, true) // no publisher is ready
		from, _ := c.BacklogBegan(c.View().Epoch)
		if from > id || from == noID {
			t.Errorf("row %d was left: the next pass starts at %d", id, from)
		}
		c.Streamed(&outbox.Message{Row: outbox.Row{ID: id}, XID: 7}, 1, true)
		c.BacklogBegan(c.View().Epoch)
		c.Saw(snapshot(t, "8:8:"), c.View().Epoch, 0)
		if from, _ = c.BacklogBegan(c.View().Epoch); from > id || from == noID {
			t.Errorf("row %d became visible: the next pass starts at %d", id, from)
		}
		c.PublisherReady(true)
		claim := &testClaim{}
		chosen := c.ChooseRows(claim, []outbox.Candidate{{Ref: outbox.Ref{ID: id}, Ready: true}}, Most{Rows: 1, Bytes: 100})
		claim.lock(c, chosen) // another session has locked it
		c.Done(claim.ended)
		if from, _ = c.BacklogBegan(c.View().Epoch); from > id || from == noID {
			t.Errorf("row %d was locked: the next pass starts at %d", id, from)
		}
	}
}

// A row waits for a time if it has one, also if that is Go's zero time.
func TestARowWithAnyTimeWaitsInTheTable(t *testing.T) {
	for _, at := range []time.Time{{}, time.Time{}.Add(-time.Hour), time.Time{}.Add(time.Microsecond), time.Unix(0, 0), time.Now()} {
		c := New(DefaultLimits(100), Policy{})
		c.TookSlot(Slot{PID: 1})
		c.Owned(c.Clock())
		c.PublisherReady(true)
		c.DueBegan()
		if out, _ := c.Streamed(&outbox.Message{Row: outbox.Row{ID: 1, AvailableAt: &at}}, 1, true); len(out.Publish) > 0 || !c.View().Due {
			t.Errorf("a row that is available at %s is published as it is streamed, or no sweep of due rows is wanted", at)
		}
	}
}

// Positions and transactions of an earlier server mean nothing on its successor, whose counters may be behind.
func TestNothingOfAnEarlierServerHoldsRowsBack(t *testing.T) {
	c := New(DefaultLimits(100), Policy{})
	lead := func(server int64, walEnd uint64) {
		c.TookSlot(Slot{PID: 1, Server: server, Start: walEnd, WALEnd: walEnd})
		c.Owned(c.Clock())
		c.PublisherReady(true)
	}
	claimed := func(id int64) (claim *testClaim) {
		claim = &testClaim{}
		row := outbox.Row{ID: id}
		chosen := c.ChooseRows(claim, []outbox.Candidate{{Ref: outbox.Ref{ID: id}, Ready: true}}, Most{Rows: 1, Bytes: 100})
		claim.lock(c, chosen, &outbox.Message{Row: row}) // at position 100
		return claim
	}
	end := func(claim *testClaim, id int64) {
		claim.Answered(outbox.Settlement{Message: &outbox.Message{Row: outbox.Row{ID: id}}, Decision: outbox.Decision{Action: outbox.Delete}}, true)
		c.Done(claim.ended)
	}
	lead(0, 90)
	end(claimed(1), 1)
	open := claimed(2)
	flying := &outbox.Message{Row: outbox.Row{ID: 3}, XID: 1000}
	if _, v := c.Streamed(flying, 101, true); v != Taken {
		t.Fatalf("a streamed row: %d", v)
	}
	lead(1, 10)
	end(open, 2)
	if out, v := c.Streamed(&outbox.Message{Row: outbox.Row{ID: 4}, XID: 8}, 11, true); len(out.Publish) != 1 {
		t.Errorf("a row that the new server streams stays in the table: %d", v)
	}
	c.Saw(snapshot(t, "8:9:8"), c.View().Epoch, c.View().ForgottenAt)
	c.Saw(snapshot(t, "9:9:"), c.View().Epoch, c.View().ForgottenAt)
	c.Resolved(outbox.Result{Message: flying, Outcome: outbox.NotSent})
	c.Saw(snapshot(t, "9:9:"), c.View().Epoch, c.View().ForgottenAt)
	if c.View().Unseen {
		t.Error("the new server is asked for a transaction of the earlier one")
	}
}

func snapshot(t *testing.T, text string) outbox.Snapshot {
	t.Helper()
	s, err := outbox.ParseSnapshot(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// testClaim is a claim without a database. Its ended is what it reports to Done.
type testClaim struct{ ended Ended }

// lock reports these of the chosen rows as locked.
func (t *testClaim) lock(c *Core, chosen Chosen, locked ...*outbox.Message) {
	t.ended = Ended{Keys: chosen.Keys, Committed: true}
	c.Locked(t, chosen.Rows, Lock{Messages: locked, Position: 100, Epoch: c.View().Epoch, Owned: true})
}

func (t *testClaim) Answered(s outbox.Settlement, _ bool) (*outbox.Message, bool) {
	t.ended.Answered = append(t.ended.Answered, s)
	return nil, true
}

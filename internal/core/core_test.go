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

// The rows of a large transaction do not keep those of others waiting, neither for room nor behind them in the table.
func TestALargeTransactionDoesNotDelayOthers(t *testing.T) {
	const window = 8
	c := New(DefaultLimits(window), Policy{})
	c.TookSlot(Slot{})
	c.Owned(time.Now())
	c.PublisherReady(true)
	stream := func(id int64, xid uint32) Verdict {
		_, v := c.Streamed(&outbox.Message{Row: outbox.Row{ID: id}, XID: xid}, 1, true)
		return v
	}
	for id := range int64(10 * window) {
		if v := stream(id, 1); v == NoRoom {
			t.Fatalf("row %d of the large transaction makes the stream wait", id)
		}
	}
	if v := stream(1000, 2); v != NoRoom {
		t.Errorf("a row of another transaction does not wait for room: %d", v)
	}
	c.PublisherReady(false)
	for id := int64(1001); id <= 1000+10*window; id++ {
		stream(id, uint32(id))
	}
	stream(2000, 9999)
	stream(2001, 9999) // its transaction is large from here on
	rows := c.TakeLeft(2, 0)
	if len(rows) != 2 || rows[0].ID != 2000 || rows[1].ID != 1000+10*window {
		t.Errorf("the next claim begins with %v, want the newest rows of small transactions", rows)
	}
	if rows = c.TakeLeft(10*window, 1002+9*window); len(rows) == 0 || len(rows) >= window {
		t.Errorf("%d rows are above the place of the pass", len(rows))
	}
}

func TestAClockThatIsSetBackIsNoticed(t *testing.T) {
	ours, server := time.Now(), time.Unix(1_000_000, 0)
	before := ServerClock{Ours: ours, Server: server}
	for passed, behind := range map[time.Duration]bool{
		10 * time.Second: false, 0: false, -40 * time.Second: false, time.Hour: false, -time.Hour: true, -400 * 24 * time.Hour: true,
	} {
		now := ServerClock{Ours: ours.Add(10 * time.Second), Server: server.Add(passed)}
		if now.Behind(before) != behind {
			t.Errorf("the server's clock went on by %s in ten seconds: behind is %t", passed, !behind)
		}
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

package core

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/pgsnapshot"
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
		claim, _ := c.ChooseRows([]outbox.Candidate{{Ref: outbox.Ref{ID: id}, Ready: true}}, false, Most{Rows: 1, Bytes: 100})
		lock(c, claim) // another session has locked it
		claim.Done(true)
		if from, _ = c.BacklogBegan(c.View().Epoch); from > id || from == noID {
			t.Errorf("row %d was locked: the next pass starts at %d", id, from)
		}
	}
}

// A row waits for a time if it has one, also if that is Go's zero time.
func TestARowWithAnyTimeWaitsInTheTable(t *testing.T) {
	for _, at := range []time.Time{{}, time.Time{}.Add(-time.Hour), time.Time{}.Add(time.Microsecond), time.Unix(0, 0), time.Now()} {
		c := leading(100)
		c.DueBegan()
		if out, _ := c.Streamed(&outbox.Message{Row: outbox.Row{ID: 1, AvailableAt: &at}}, 1, true); len(out.Publish) > 0 || !c.View().Due {
			t.Errorf("a row that is available at %s is published as it is streamed, or no sweep of due rows is wanted", at)
		}
	}
}

// Under full load the stream fills the window again and again. Neither it nor the claims of what it has left starve.
func TestTheStreamAndTheClaimsShareAFullWindow(t *testing.T) {
	const window = 100
	c := leading(window)
	c.StreamLive(true)
	var flying []*outbox.Message
	id, claimed, streamed := int64(0), 0, 0
	for range 40 {
		for range window {
			id++
			out, _ := c.Streamed(&outbox.Message{Row: outbox.Row{ID: id}, XID: uint32(id)}, uint64(id), false)
			flying = append(flying, out.Publish...)
			streamed += len(out.Publish)
		}
		if rows, _ := c.Capacity(50); rows > 0 {
			var found []outbox.Candidate
			for range rows {
				id++
				found = append(found, outbox.Candidate{Ref: outbox.Ref{ID: -id}, Ready: true})
			}
			claim, _ := c.ChooseRows(found, false, Most{Rows: rows, Bytes: 1 << 20})
			claim.Done(false) // it has its turn, and its rows leave
			claimed += rows
		}
		var done []outbox.Settlement
		for _, m := range flying[:min(10, len(flying))] {
			out, _ := c.Resolved(outbox.Result{Message: m, Outcome: outbox.Confirmed})
			done = append(done, out.Settle...)
		}
		flying = flying[len(done):]
		c.Settled(done)
	}
	if claimed < 5*window || streamed < 2*window {
		t.Errorf("%d rows left by the stream and %d by claims", streamed, claimed)
	}
}

// While a message of a claim is in flight, further claims leave its room to the stream, also if it has no answer for long.
func TestUnansweredMessagesCountAgainstTheShareOfClaims(t *testing.T) {
	c := leading(100)
	c.StreamLive(true)
	var found []outbox.Candidate
	var messages []*outbox.Message
	for id := range int64(75) {
		found = append(found, outbox.Candidate{Ref: outbox.Ref{ID: id}, Ready: true})
		messages = append(messages, &outbox.Message{Row: outbox.Row{ID: id}})
	}
	claim, _ := c.ChooseRows(found, false, Most{Rows: 75, Bytes: 1 << 20})
	flying := lock(c, claim, messages...).Publish
	claim.End()
	claim.Done(true)
	if rows, _ := c.Capacity(10); rows > 0 || len(flying) != 75 {
		t.Errorf("beside %d messages without an answer, a claim may have %d rows", len(flying), rows)
	}
	for _, m := range flying {
		out, _ := c.Resolved(outbox.Result{Message: m, Outcome: outbox.Confirmed})
		c.Settled(out.Settle)
	}
	if rows, _ := c.Capacity(75); rows != 75 || c.View().InFlight != 0 {
		t.Errorf("after the answers, a claim may have %d rows", rows)
	}
}

// The rows of a large transaction do not keep those of others waiting, neither for room nor behind them in the table.
func TestALargeTransactionDoesNotDelayOthers(t *testing.T) {
	const window = 8
	c := leading(window)
	stream := func(id int64, xid uint32) Verdict {
		_, v := c.Streamed(&outbox.Message{Row: outbox.Row{ID: id}, XID: xid}, 1, true)
		return v
	}
	for id := range int64(10 * window) {
		if v := stream(id, 1); v == NoRoom {
			t.Fatalf("row %d of the large transaction makes the stream wait", id)
		}
	}
	for n, want := range []Verdict{Taken, Taken, NoRoom} {
		if v := stream(int64(1000+n), uint32(2+n)); v != want {
			t.Errorf("row %d of another transaction: %d, want %d", n, v, want)
		}
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

// leading returns the core of a leader with a window of this many messages, whose publisher is ready.
func leading(window int) *Core {
	c := New(DefaultLimits(window), Policy{MaxRetries: 5})
	c.PublisherReady(true)
	c.TookSlot(Slot{PID: 1})
	c.Owned(c.Clock())
	return c
}

func snapshot(t *testing.T, text string) pgsnapshot.Snapshot {
	t.Helper()
	s, err := pgsnapshot.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// lock reports these of a claim's rows as locked.
func lock(c *Core, claim *Claim, locked ...*outbox.Message) (out Out) {
	return claim.Locked(Lock{Messages: locked, Position: 100, Alive: c.Clock(), Epoch: c.View().Epoch, Owned: true})
}

// A large row is claimed alone and beside the window, one at a time. Those behind it are found again when it has left.
func TestALargeRowIsClaimedBesideTheOthers(t *testing.T) {
	for name, due := range map[string]*time.Time{"fresh": nil, "due": new(time.Unix(0, 0)), "failed": nil} {
		failed := name == "failed"
		c := leading(100)
		row := func(id int64, size int) outbox.Candidate {
			return outbox.Candidate{Ref: outbox.Ref{ID: id}, Size: size, Ready: true, Due: due}
		}
		rows := []outbox.Candidate{row(1, 10), row(2, 1<<30), row(3, 10), row(4, 2<<30), row(5, 10)}
		_, before := c.Capacity(100)
		var large *Claim
		var sent *outbox.Message
		var pages []string
		for len(rows) > 0 {
			claim, read := c.ChooseRows(rows, false, Most{Rows: 100, Bytes: 100})
			var messages []*outbox.Message
			for _, one := range claim.Rows {
				messages = append(messages, &outbox.Message{Row: outbox.Row{ID: one.ID, AvailableAt: due}})
			}
			if lock(c, claim, messages...); claim.Large {
				large, sent = claim, messages[0]
				sent.Payload = make([]byte, 1<<20) // read after the lock
			}
			pages, rows = append(pages, fmt.Sprint(len(messages), claim.Large)), rows[read:]
		}
		if got := fmt.Sprint(pages); got != "[1 false 1 true 2 false]" {
			t.Errorf("%s: the claims are %s", name, got)
		}
		if _, after := c.Capacity(100); after != before {
			t.Errorf("%s: the next claim may have %d bytes, want %d", name, after, before)
		}
		c.BacklogBegan(c.View().Epoch)
		c.DueBegan()
		if failed {
			large.ReadFailed()
		} else {
			large.Read(c.Clock())
			c.Resolved(outbox.Result{Message: sent, Outcome: outbox.Confirmed})
			large.Done(true)
		}
		from, _ := c.BacklogBegan(c.View().Epoch)
		if again := c.DueBegan(); due == nil && from != 4 || due != nil && (len(again) != 1 || again[0].ID != 4) {
			t.Errorf("%s: the next pass starts at %d, due rows are %v", name, from, again)
		}
		if failed {
			large.Done(false)
		}
		if _, after := c.Capacity(100); after != before {
			t.Errorf("%s: at the end, a claim may have %d bytes, want %d", name, after, before)
		}
	}
}

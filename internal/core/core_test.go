package core

import (
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
		c.BeginTerm(Lead{})
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

// Under full load the stream fills the window again and again. Neither it nor the sweeps of what it has left starve.
func TestTheStreamAndTheSweepsShareAFullWindow(t *testing.T) {
	const window = 100
	c := leading(window)
	c.StreamLive(true)
	var flying []*outbox.Message
	id, swept, streamed := int64(0), 0, 0
	for range 40 {
		for range window {
			id++
			out, _ := c.Streamed(&outbox.Message{Row: outbox.Row{ID: id}, XID: uint32(id)}, uint64(id), false)
			flying = append(flying, out.Publish...)
			streamed += len(out.Publish)
		}
		if rows, _ := c.Capacity(50); rows > 0 {
			var read []*outbox.Message
			for range rows {
				id++
				read = append(read, &outbox.Message{Row: outbox.Row{ID: -id}})
			}
			out, _ := sweep(c, read...)
			flying = append(flying, out.Publish...)
			swept += len(out.Publish)
		}
		var done []outbox.Settlement
		for _, m := range flying[:min(10, len(flying))] {
			out, _ := c.Resolved(outbox.Result{Message: m, Outcome: outbox.Confirmed})
			done = append(done, out.Settle...)
		}
		flying = flying[len(done):]
		c.Settled(done)
	}
	if swept < window || streamed < 2*window {
		t.Errorf("%d rows left by the stream and %d by sweeps", streamed, swept)
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
	if len(rows) != 2 || rows[0] != 2000 || rows[1] != 1000+10*window {
		t.Errorf("the next sweep begins with %v, want the newest rows of small transactions", rows)
	}
	if rows = c.TakeLeft(10*window, 1002+9*window); len(rows) == 0 || len(rows) >= window {
		t.Errorf("%d rows are above the place of the pass", len(rows))
	}
}

// The stream may begin on a new server before the term ends.
func TestAStreamedRowBelongsToTheServerOfItsStream(t *testing.T) {
	c, m := leading(100), &outbox.Message{Row: outbox.Row{ID: 1}}
	c.StreamBegan(1, 7)
	if c.Streamed(m, 100, false); m.Server != 7 {
		t.Errorf("the row belongs to server %d", m.Server)
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

// What was read in an earlier term says nothing about the table now.
func TestANewTermReadsTheWholeTable(t *testing.T) {
	c := leading(10)
	c.BacklogBegan(c.View().Epoch)
	c.DueBegan()
	c.EndTerm()
	c.BeginTerm(Lead{})
	if v := c.View(); !v.Backlog || !v.Due {
		t.Errorf("%+v", v)
	}
}

func TestTooManyInvisibleTransactionsAskForTheWholeTable(t *testing.T) {
	c := leading(10)
	c.BacklogBegan(c.View().Epoch)
	c.lock()
	for n := range c.mu.unseen.limit + 1 {
		c.noteUnseen(&outbox.Message{XID: uint32(n + 1)}, 7)
	}
	c.mu.Unlock()
	if v := c.View(); !v.Backlog || v.ForgottenAt == 0 {
		t.Errorf("%+v", v)
	}
}

// leading returns the core of a leader with a window of this many messages, whose publisher is ready. Its time stands
// still, or a slow machine would lose the lock.
func leading(window int) *Core {
	c, now := New(DefaultLimits(window), Policy{MaxRetries: 5}), time.Now()
	c.Clock = func() time.Time { return now }
	c.PublisherReady(true)
	c.BeginTerm(Lead{})
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

// sweep reports rows without a key that a sweep has read.
func sweep(c *Core, rows ...*outbox.Message) (out Out, n int) {
	c.Search(0, -1)
	return c.Swept(Read{Messages: rows, Position: 100, Epoch: c.View().Epoch})
}

// sweepRuns chooses the runs that were found, and reports these of their rows as read.
func sweepRuns(c *Core, found Found, keys int, most Most, rows ...*outbox.Message) Out {
	return c.SweptRuns(c.ChooseRuns(found, keys, most), Read{Messages: rows, Position: 100, Epoch: found.Epoch})
}

// Rows with large bodies leave beside the window, one at a time, and each is read from the table once.
func TestALargeRowLeavesBesideTheOthers(t *testing.T) {
	for name, due := range map[string]*time.Time{"fresh": nil, "due": new(time.Unix(0, 0)), "failed": nil} {
		c := leading(8)
		row := func(id int64, unread int) *outbox.Message {
			return &outbox.Message{Row: outbox.Row{ID: id, AvailableAt: due}, Defects: outbox.Defects{Unread: unread}}
		}
		out, n := sweep(c, row(1, 0), row(2, 1<<30), row(3, 0), row(4, 2<<30), row(5, 0), row(6, 3<<30))
		if len(out.Publish) != 3 || n != 6 {
			t.Fatalf("%s: %d rows are handled, %d rows leave", name, n, len(out.Publish))
		}
		c.BacklogBegan(c.View().Epoch)
		c.DueBegan()
		for id := int64(2); id <= 4; id += 2 {
			announced := false
			select {
			case <-c.Bodies:
				announced = true
			default:
			}
			large := c.NextBody()
			if !announced || large == nil || large.ID != id || c.NextBody() != nil {
				t.Fatalf("%s: the body of %+v is read, not that of row %d alone", name, large, id)
			}
			read := row(id, 0)
			read.Payload, read.Attempts, read.PossibleDuplicate = make([]byte, 1<<20), 7, true
			c.Owned(c.Clock().Add(time.Duration(id)))
			if name == "failed" {
				read = nil
			}
			if left := c.BodyRead(large, read).Publish; len(left) != 1 == (read != nil) {
				t.Errorf("%s: %d messages leave after the body was read", name, len(left))
			}
			if read != nil {
				if large.Attempts != 7 || !large.PossibleDuplicate || !large.TakenAt.Equal(c.mu.lease.owned) {
					t.Errorf("%s: not the row as it was read with its body, or not taken then: %+v", name, large)
				}
				confirmed, _ := c.Resolved(outbox.Result{Message: large, Outcome: outbox.Confirmed})
				c.Settled(confirmed.Settle)
			}
		}
		if small := row(1, 0).Size(); c.mu.window.bytes != 3*small {
			t.Errorf("%s: %d bytes are counted for three rows of %d", name, c.mu.window.bytes, small)
		}
		from, _ := c.BacklogBegan(c.View().Epoch)
		if wanted := c.View().Due; due == nil && from > 6 || due != nil && !wanted {
			t.Errorf("%s: the row for which the line was full is forgotten: a pass from %d, due rows: %t", name, from, wanted)
		}
	}
}

// A row that is larger than memory is read for the leader of this term only, and after its rest. The next one waits
// until its turn, but not beyond the term.
func TestABodyIsPublishedOnlyByTheLeader(t *testing.T) {
	now := time.Now()
	for name, tc := range map[string]struct {
		meanwhile func(*Core)
		waits     int
	}{
		"the term has ended":     {func(c *Core) { c.EndTerm() }, 0},
		"the relay stops":        {func(c *Core) { c.Stop() }, 0},
		"the lock is uncertain":  {func(*Core) { now = now.Add(time.Second) }, 1},
		"a new term rests":       {func(c *Core) { c.EndTerm(); c.BeginTerm(Lead{Free: now}); c.Owned(now) }, 0},
		"the publisher is away":  {func(c *Core) { c.PublisherReady(false) }, 1},
		"its key was set":        {nil, 1},
		"another session has it": {nil, 1},
	} {
		c := leading(100)
		c.Clock = func() time.Time { return now }
		c.Owned(now.Add(time.Millisecond))
		for id := range int64(2) {
			sweep(c, &outbox.Message{Row: outbox.Row{ID: id}, Defects: outbox.Defects{Unread: 1 << 30}})
		}
		body := c.NextBody()
		read := &outbox.Message{Row: outbox.Row{ID: body.ID}}
		switch name {
		case "its key was set":
			read.OrderingKey = new("k")
		case "another session has it":
			read = nil
		default:
			tc.meanwhile(c)
		}
		if left := c.BodyRead(body, read); len(left.Publish) > 0 || c.View().InFlight != tc.waits {
			t.Errorf("%s: the message leaves, or %d are in memory, not %d", name, c.View().InFlight, tc.waits)
		}
	}
}

// Rows whose messages were published cannot be deleted: each further message would leave again after a restart.
func TestASuspendedRelayPublishesNothing(t *testing.T) {
	c := leading(100)
	c.Suspend(true)
	if _, v := c.Streamed(&outbox.Message{Row: outbox.Row{ID: 1}, XID: 12}, 100, true); v != Left {
		t.Errorf("the verdict is %d", v)
	}
	if rows, _ := c.Capacity(1); rows > 0 {
		t.Error("a sweep reads rows")
	}
}

// The lock has become uncertain while a statement ran.
func TestALateSweepTakesNothing(t *testing.T) {
	c := leading(100)
	late := c.Clock().Add(LateAfter + 1)
	c.Clock = func() time.Time { return late }
	if _, n := sweep(c, &outbox.Message{Row: outbox.Row{ID: 1}}); n != 0 {
		t.Errorf("%d rows are taken", n)
	}
}

// A row that could leave before this term is marked, and one that the broker may have taken.
func TestRowsThatMayHaveBeenPublishedAreMarked(t *testing.T) {
	for name, tc := range map[string]struct {
		id, lost int64
		marked   bool
	}{
		"up to the boundary":                {id: 5, marked: true},
		"above it":                          {id: 6},
		"up to a row whose confirm is lost": {id: 7, lost: 7, marked: true},
		"above that":                        {id: 8, lost: 7},
	} {
		for _, reason := range []outbox.Reason{outbox.ReasonNack, outbox.ReasonUnroutable} {
			c := leading(8)
			c.BeginTerm(Lead{Older: 5})
			c.Owned(c.Clock())
			if tc.lost > 0 {
				out, _ := c.Streamed(&outbox.Message{Row: outbox.Row{ID: tc.lost}}, 1, false)
				c.Resolved(outbox.Result{Message: out.Publish[0], Outcome: outbox.Unknown})
			}
			m := &outbox.Message{Row: outbox.Row{ID: tc.id}}
			if out, _ := sweep(c, m); len(out.Publish) != 1 || m.PossibleDuplicate != tc.marked {
				t.Errorf("%s: marked is %t", name, m.PossibleDuplicate)
			}
			rejected := outbox.Result{Message: m, Outcome: outbox.Rejected, Reason: reason}
			if c.Resolved(rejected); m.PossibleDuplicate != (tc.marked || rejected.MayHaveArrived()) {
				t.Errorf("%s: after %s, marked is %t", name, reason, m.PossibleDuplicate)
			}
		}
	}
}

// The next leader neither waits nor marks newer rows then.
func TestALeaderHasEndedWellIfNothingIsOnItsWay(t *testing.T) {
	for name, tc := range map[string]struct {
		rests   bool // a former leader may still publish
		outcome outbox.Outcome
		aside   bool
		after   time.Duration
		older   int64
		quiet   bool
	}{
		"a message is confirmed":              {outcome: outbox.Confirmed, older: 5, quiet: true},
		"a message is in flight":              {older: 5},
		"a confirm was lost just now":         {outcome: outbox.Unknown, older: 7, after: RestFor},
		"a confirm was lost":                  {outcome: outbox.Unknown, older: 7, after: RestFor + 1, quiet: true},
		"a published row cannot be deleted":   {outcome: outbox.Confirmed, aside: true, older: 7, quiet: true},
		"the former leader may still publish": {rests: true, outcome: outbox.Confirmed, older: 5},
		"the former leader cannot any more":   {rests: true, outcome: outbox.Confirmed, after: RestFor, older: 5, quiet: true},
	} {
		c := leading(8)
		now := c.Clock()
		lead := Lead{Older: 5}
		if tc.rests {
			lead.Free = now
		}
		c.BeginTerm(lead)
		c.Owned(now)
		out, _ := c.Streamed(&outbox.Message{Row: outbox.Row{ID: 7}}, 1, false)
		if tc.outcome != 0 {
			out, _ = c.Resolved(outbox.Result{Message: out.Publish[0], Outcome: tc.outcome})
			if tc.aside {
				c.SetAside(out.Settle[0])
			} else {
				c.Settled(out.Settle)
			}
		}
		c.Clock = func() time.Time { return now.Add(tc.after) }
		if older, quiet := c.Quiet(); older != tc.older || quiet != tc.quiet {
			t.Errorf("%s: up to %d, %t", name, older, quiet)
		}
	}
}

// What a former leader updates late may have been published by the new one.
func TestALateUpdateIsMarked(t *testing.T) {
	now := time.Now()
	for name, tc := range map[string]struct {
		after  time.Duration
		ended  bool
		former bool // the message was taken in a term before
		action outbox.Action
		marked bool
	}{
		"in time":            {after: time.Second, action: outbox.Retry},
		"late":               {after: RestFor + 1, action: outbox.Retry, marked: true},
		"a late dead letter": {after: RestFor + 1, action: outbox.DeadLetter, marked: true},
		"a late delete":      {after: RestFor + 1, action: outbox.Delete},
		"after the term":     {ended: true, action: outbox.Retry, marked: true},
		"of a term before":   {former: true, action: outbox.Retry, marked: true},
	} {
		c := leading(100)
		c.Clock = func() time.Time { return now.Add(tc.after) }
		c.mu.lease.owned = now
		if tc.ended {
			c.EndTerm()
		}
		m := &outbox.Message{TakenAt: c.mu.term.began}
		if tc.former {
			m.TakenAt = m.TakenAt.Add(-1)
		}
		c.MarkLate([]outbox.Settlement{{Message: m, Decision: outbox.Decision{Action: tc.action}}})
		if m.PossibleDuplicate != tc.marked {
			t.Errorf("%s: marked is %t", name, m.PossibleDuplicate)
		}
	}
}

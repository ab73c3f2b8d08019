package fallback

import (
	"slices"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/core"
)

const poll = time.Second

func streaming() Role {
	return Role{View: core.View{Leader: true, Live: true, Ready: true}, Sweeps: true}
}

// settle runs the planner until it waits. It returns the sweeps that ran, and the wait.
func settle(p *Planner, now time.Time, v Role) (ran []Sweep, wait time.Duration) {
	for range 10 {
		sweep, delay := p.Next(now, v)
		if sweep == None {
			return ran, delay
		}
		ran = append(ran, sweep)
		p.Done(sweep, now, Outcome{})
	}
	return ran, 0
}

func ranOnly(t *testing.T, ran []Sweep, want ...Sweep) {
	t.Helper()
	ran = slices.Sorted(slices.Values(ran))
	if !slices.Equal(ran, slices.Sorted(slices.Values(want))) {
		t.Fatalf("ran %v, want %v", ran, want)
	}
}

func TestALeaderPollsOnlyForDueRows(t *testing.T) {
	p, now := NewPlanner(poll), time.Now()
	ran, _ := settle(p, now, streaming())
	ranOnly(t, ran, Due, Backlog, Keys) // once, at the start
	for i := 1; i <= 3; i++ {
		ran, wait := settle(p, now.Add(time.Duration(i)*poll), streaming())
		ranOnly(t, ran, Due)
		if wait > poll {
			t.Fatalf("waits %s, want at most %s", wait, poll)
		}
	}
	ran, _ = settle(p, now.Add(noticedIn-1), streaming())
	ranOnly(t, ran, Due)
	ran, _ = settle(p, now.Add(noticedIn), streaming())
	ranOnly(t, ran, Keys, Backlog)
}

func TestAStartedPassRunsToItsEnd(t *testing.T) {
	p, now := NewPlanner(poll), time.Now()
	settle(p, now, streaming())
	p.Done(Backlog, now, Outcome{More: true})
	for range 3 {
		if sweep, _ := p.Next(now, streaming()); sweep != Backlog {
			t.Fatalf("next is %d, want the pass", sweep)
		}
		p.Done(Backlog, now, Outcome{More: true})
	}
	p.Done(Backlog, now, Outcome{})
	if ran, _ := settle(p, now, streaming()); len(ran) > 0 {
		t.Errorf("ran %v after its end", ran)
	}
}

func TestARequestedSweepRunsWithinAPollInterval(t *testing.T) {
	p, now := NewPlanner(poll), time.Now()
	settle(p, now, streaming())
	v := streaming()
	v.Backlog, v.Unlisted, v.Due = true, true, true
	ran, wait := settle(p, now, v)
	ranOnly(t, ran)
	ran, _ = settle(p, now.Add(wait), v)
	ranOnly(t, ran, Due, Backlog, Keys)
}

// Look-ups of wanted keys do not wait for a poll interval, and not for keys of which nothing could be read.
func TestWantedKeysAreLookedUpAtOnce(t *testing.T) {
	p, now := NewPlanner(poll), time.Now()
	settle(p, now, streaming())
	v := streaming()
	v.Wanted = 1
	if sweep, _ := p.Next(now, v); sweep != Keys {
		t.Fatalf("next is %d", sweep)
	}
	p.wantedAt, p.againAt = now, now.Add(firstAgain)
	v.Wanted, v.Again = 0, 1
	if sweep, wait := p.Next(now, v); sweep != None || wait != firstAgain {
		t.Errorf("next is %d after %s", sweep, wait)
	}
	v.Wanted = 1
	if sweep, _ := p.Next(now, v); sweep != Keys {
		t.Errorf("next is %d while fresh keys wait", sweep)
	}
}

// While nothing can be published, a leader only asks which transactions are visible.
func TestNoSweepRunsWithoutAPublisherOrRoom(t *testing.T) {
	v := streaming()
	v.Ready, v.Backlog, v.Unlisted, v.Wanted = false, true, true, 1
	p, now := NewPlanner(poll), time.Now()
	ran, _ := settle(p, now, v)
	ranOnly(t, ran)
	v.Unseen = true
	if sweep, _ := p.Next(now, v); sweep != Backlog {
		t.Errorf("next is %d", sweep)
	}
	p.looked = now
	if sweep, wait := p.Next(now, v); sweep != None || wait != poll {
		t.Errorf("next is %d after %s", sweep, wait)
	}
}

// The stream does not bring an UPDATE of a row. A pass finds it, of the kind that the changed row needs.
func TestChangedRowsAreFoundWithinFivePollIntervals(t *testing.T) {
	for interval, most := range map[time.Duration]time.Duration{
		time.Millisecond: noticedIn, 50 * time.Millisecond: noticedIn, time.Second: 5 * time.Second, 3 * time.Second: 15 * time.Second,
		time.Hour: 5 * time.Hour,
	} {
		p, now := NewPlanner(interval), time.Now()
		for range 2 {
			for sweep := Due; sweep <= Keys; sweep++ {
				p.Done(sweep, now, Outcome{Took: 5 * time.Millisecond, Quiet: 24 * time.Hour})
			}
		}
		for sweep := Due; sweep <= Keys; sweep++ {
			if after := p.at(sweep, streaming()).Sub(now); after > most {
				t.Errorf("with an interval of %s, the next sweep of %s comes after %s, want %s", interval, sweep, after, most)
			}
		}
		if _, wait := p.Next(now, streaming()); wait > most {
			t.Errorf("with an interval of %s, the leader sleeps for %s", interval, wait)
		}
	}
}

func TestTheSafetyPassUsesHalfAPercentOfTheTime(t *testing.T) {
	for took, after := range map[time.Duration]time.Duration{
		time.Millisecond:       noticedIn,
		20 * time.Millisecond:  noticedIn,
		100 * time.Millisecond: 20 * time.Second,
		time.Second:            200 * time.Second,
		4 * time.Second:        10 * time.Minute,
	} {
		p, now := NewPlanner(poll), time.Now()
		p.Done(Backlog, now, Outcome{Took: took})
		if at := p.at(Backlog, streaming()); at.Sub(now) > noticedIn {
			t.Errorf("after one walk of %v, perhaps of a paused server, the next comes after %v", took, at.Sub(now))
		}
		p.Done(Backlog, now, Outcome{Took: took})
		if at := p.at(Backlog, streaming()); at.Sub(now) != after {
			t.Errorf("a walk that took %v is repeated after %v, want %v", took, at.Sub(now), after)
		}
	}
}

// The first page of a pass scans the dead rows; the last page is empty and costs nothing.
func TestAPassWithAnExpensivePageRunsLessOften(t *testing.T) {
	p, now := NewPlanner(poll), time.Now()
	v := streaming()
	v.Backlog = true
	for range 2 {
		p.Done(Backlog, now, Outcome{Took: time.Second, More: true})
		p.Done(Backlog, now, Outcome{Took: time.Millisecond})
	}
	if at := p.at(Backlog, v); at.Sub(now) < 20*time.Second {
		t.Errorf("a pass of which a page took a second runs again after %s", at.Sub(now))
	}
	p.Done(Backlog, now, Outcome{Took: time.Millisecond})
	if at := p.at(Backlog, v); at.Sub(now) > poll {
		t.Errorf("a cheap one after it runs again after %s", at.Sub(now))
	}
}

// The cost of a pass is the cost of all its pages, even if each page is short. If keys are unlisted, the pass runs at
// once nevertheless.
func TestAPassOverManyKeysRunsLessOften(t *testing.T) {
	p, now := NewPlanner(poll), time.Now()
	for range 999 {
		p.Done(Keys, now, Outcome{Took: time.Millisecond, More: true})
	}
	p.Done(Keys, now, Outcome{Took: time.Millisecond})
	v := streaming()
	if wait := p.at(Keys, v).Sub(now); wait < 50*time.Second {
		t.Errorf("a pass whose pages took a second runs again after %s", wait)
	}
	v.Unlisted = true
	if wait := p.at(Keys, v).Sub(now); wait > poll {
		t.Errorf("with unlisted keys it runs again after %s", wait)
	}
	p.Done(Keys, now, Outcome{Took: time.Millisecond})
	if wait := p.at(Keys, streaming()).Sub(now); wait > noticedIn+poll {
		t.Errorf("a short pass runs again after %s", wait)
	}
}

// The stream tells the leader about rows with a time, and the table when the next row is due.
func TestTheDueSweepWaitsUntilARowIsDue(t *testing.T) {
	v, now := streaming(), time.Now()
	for _, one := range []struct {
		quiet, want time.Duration
		moved       bool
	}{
		{quiet: time.Hour, want: 5 * poll},
		{quiet: 3 * poll, want: 3 * poll},
		{quiet: poll / 2, want: poll},
		{quiet: 0, want: poll},
		{quiet: time.Hour, moved: true, want: poll},
	} {
		p := NewPlanner(poll)
		p.Done(Due, now, Outcome{Quiet: one.quiet})
		v.Due = one.moved
		if got := p.at(Due, v).Sub(now); got != one.want {
			t.Errorf("%+v: looks again after %s", one, got)
		}
		if got := p.at(Due, Role{View: core.View{Ready: true}}).Sub(now); got != poll {
			t.Errorf("without a stream it looks again after %s", got)
		}
		v.Live = false
		if got := p.at(Due, v).Sub(now); got != poll {
			t.Errorf("with a silent stream it looks again after %s", got)
		}
		v.Live = true
	}
}

// One slow run may have been a paused server, and must not delay due rows.
func TestOneSlowSweepDoesNotDelayTheNext(t *testing.T) {
	p, now := NewPlanner(poll), time.Now()
	for _, took := range []time.Duration{time.Millisecond, 29 * time.Second, time.Millisecond, 29 * time.Second} {
		p.Done(Due, now, Outcome{Took: took})
		if at := p.at(Due, streaming()); at.Sub(now) > poll {
			t.Errorf("after %s it runs again after %s", took, at.Sub(now))
		}
	}
}

func TestARelaySweepsOnlyWhileItLeads(t *testing.T) {
	role := Role{View: core.View{Ready: true}}
	p, now := NewPlanner(poll), time.Now()
	ran, _ := settle(p, now, role)
	ranOnly(t, ran)
	role.Sweeps = true
	ran, _ = settle(p, now.Add(poll), role)
	ranOnly(t, ran, Due, Backlog, Keys)
}

func TestNoSweepStarvesAnother(t *testing.T) {
	p, now := NewPlanner(poll), time.Now()
	v := streaming()
	v.Backlog, v.Unlisted = true, true
	ran := map[Sweep]int{}
	for range 40 {
		sweep, _ := p.Next(now, v)
		ran[sweep]++
		now = now.Add(time.Millisecond)
		p.Done(sweep, now, Outcome{More: true})
	}
	for _, sweep := range []Sweep{Due, Backlog, Keys} {
		if ran[sweep] < 10 {
			t.Errorf("sweep %d ran %d of 40 times: %v", sweep, ran[sweep], ran)
		}
	}
}

func TestAQuietLeaderSleepsUntilWorkIsPlanned(t *testing.T) {
	p, now := NewPlanner(poll), time.Now()
	settle(p, now, streaming())
	p.Done(Due, now, Outcome{Quiet: time.Hour})
	if _, wait := p.Next(now, streaming()); wait != 5*poll {
		t.Errorf("it waits for %s, want five intervals, or until the last pulse before the due sweep", wait)
	}
	v := streaming()
	v.Ready = false
	if _, wait := p.Next(now, v); wait != poll {
		t.Errorf("without a publisher it waits for %s, want %s", wait, poll)
	}
}

package fallback

import (
	"slices"
	"testing"
	"time"
)

const poll = time.Second

// streaming is how things stand when all is well and nothing waits.
func streaming() View {
	return View{Holder: true, StreamLive: true, PublisherReady: true, Room: true}
}

// settle runs the planner until it wants to wait, and returns what it ran and for how
// long it then waits.
func settle(p *Planner, now time.Time, v View) (ran []Sweep, wait time.Duration) {
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

func TestAHealthyStreamLeavesOnlyTheDueRowsToPoll(t *testing.T) {
	p, now := NewPlanner(poll), time.Now()
	ran, _ := settle(p, now, streaming())
	ranOnly(t, ran, Due, Leftovers, KeyPass) // once, at the start
	for i := 1; i <= 3; i++ {
		ran, wait := settle(p, now.Add(time.Duration(i)*poll), streaming())
		ranOnly(t, ran, Due)
		if wait > poll {
			t.Fatalf("waits %s, want at most %s", wait, poll)
		}
	}
	ran, _ = settle(p, now.Add(keyPassSafety+poll), streaming())
	ranOnly(t, ran, KeyPass, Due)
	ran, _ = settle(p, now.Add(LeftoverSafety+poll), streaming())
	ranOnly(t, ran, Due, KeyPass, Leftovers)
}

func TestAPassUnderWayGoesOnThoughNothingAsksForIt(t *testing.T) {
	p, now := NewPlanner(poll), time.Now()
	settle(p, now, streaming())
	later := now.Add(LeftoverSafety + poll)
	p.Done(Due, later, Outcome{})
	p.Done(KeyPass, later, Outcome{})
	for pass, v := range map[Sweep]View{
		Leftovers: {Holder: true, StreamLive: true, PublisherReady: true, Room: true, Leftovers: true},
		Spilled:   {Holder: true, StreamLive: true, PublisherReady: true, Room: true, Spilled: true},
	} {
		p.Done(Leftovers, later, Outcome{})
		for range 3 {
			sweep, _ := p.Next(later.Add(poll), v)
			for ; sweep == Due || sweep == KeyPass; sweep, _ = p.Next(later.Add(poll), v) {
				p.Done(sweep, later.Add(poll), Outcome{})
			}
			if sweep != pass {
				t.Fatalf("next is %d, want %d", sweep, pass)
			}
			p.Done(sweep, later.Add(poll), Outcome{More: true})
			v.Leftovers, v.Spilled = false, false // the pass has begun
		}
		p.Done(pass, later.Add(poll), Outcome{})
	}
}

func TestRowsThatAskForASweepGetItWithinAPollInterval(t *testing.T) {
	p, now := NewPlanner(poll), time.Now()
	settle(p, now, streaming())
	v := streaming()
	v.Leftovers, v.Suspicious = true, true
	ran, wait := settle(p, now, v)
	ranOnly(t, ran)
	ran, _ = settle(p, now.Add(wait), v)
	ranOnly(t, ran, Due, Leftovers, KeyPass)
}

func TestNothingIsSweptWhileThePublisherIsAwayOrTheWindowFull(t *testing.T) {
	for name, change := range map[string]func(*View){
		"publisher away": func(v *View) { v.PublisherReady = false },
		"no room":        func(v *View) { v.Room = false },
	} {
		v := streaming()
		v.Leftovers, v.Keys = true, true
		change(&v)
		p, now := NewPlanner(poll), time.Now()
		ran, _ := settle(p, now, v)
		for _, sweep := range ran {
			if sweep != KeyPass { // it reads no payloads and takes no room
				t.Errorf("%s: ran %v", name, ran)
			}
		}
	}
}

// A long transaction keeps millions of dead rows from being cleaned up: what the stream has left
// behind them does not wait until a walk over all of them may be run again.
func TestWhatWasSpilledIsReadThoughAWalkIsExpensive(t *testing.T) {
	p, now := NewPlanner(poll), time.Now()
	settle(p, now, streaming())
	for range 2 {
		p.Done(Leftovers, now, Outcome{Took: time.Second})
	}
	v := streaming()
	v.Spilled = true
	for i := 1; i <= 5; i++ {
		ran, _ := settle(p, now.Add(time.Duration(i)*poll), v)
		if !slices.Contains(ran, Spilled) || slices.Contains(ran, Leftovers) {
			t.Fatalf("ran %v, want what was spilled alone", ran)
		}
	}
	v.Leftovers = true // a pass through the table comes to it, too
	sweep, _ := p.Next(now.Add(time.Minute), v)
	for ; sweep != Leftovers; sweep, _ = p.Next(now.Add(time.Minute), v) {
		p.Done(sweep, now.Add(time.Minute), Outcome{})
	}
	p.Done(Leftovers, now.Add(time.Minute), Outcome{More: true})
	ran, _ := settle(p, now.Add(time.Minute+2*poll), v)
	for i, sweep := range ran {
		if sweep == Spilled && !slices.Contains(ran[:i], Leftovers) {
			t.Errorf("ran %v: what was spilled is read twice", ran)
		}
	}
}

func TestAWalkThatNothingAsksForTakesAThousandthOfTheTime(t *testing.T) {
	for took, after := range map[time.Duration]time.Duration{
		time.Millisecond: LeftoverSafety,
		time.Second / 10: 100 * time.Second,
		time.Second:      10 * time.Minute,
	} {
		p, now := NewPlanner(poll), time.Now()
		p.Done(Leftovers, now, Outcome{Took: took})
		if at := p.at(Leftovers, streaming()); at.Sub(now) < after || at.Sub(now) > after+poll {
			t.Errorf("a walk that took %v is repeated after %v, want %v", took, at.Sub(now), after)
		}
	}
}

func TestAnExpensiveSweepRunsLessOften(t *testing.T) {
	p, now := NewPlanner(poll), time.Now()
	v := streaming()
	v.Leftovers = true
	for range 2 {
		p.Done(Leftovers, now, Outcome{Took: time.Second})
	}
	if at := p.at(Leftovers, v); at.Sub(now) < 20*time.Second {
		t.Errorf("a sweep that took a second runs again after %s", at.Sub(now))
	}
}

// The first page of a pass walks over what is dead; the last, which is empty, costs nothing.
func TestAPassWithAnExpensivePageRunsLessOften(t *testing.T) {
	p, now := NewPlanner(poll), time.Now()
	v := streaming()
	v.Leftovers = true
	for range 2 {
		p.Done(Leftovers, now, Outcome{Took: time.Second, More: true})
		p.Done(Leftovers, now, Outcome{Took: time.Millisecond})
	}
	if at := p.at(Leftovers, v); at.Sub(now) < 20*time.Second {
		t.Errorf("a pass of which a page took a second runs again after %s", at.Sub(now))
	}
	p.Done(Leftovers, now, Outcome{Took: time.Millisecond})
	if at := p.at(Leftovers, v); at.Sub(now) > poll {
		t.Errorf("a cheap one after it runs again after %s", at.Sub(now))
	}
}

// A pass costs what all of its pages cost, though none of them takes long. Where keys are not known
// it is wanted all the same.
func TestAPassOverManyKeysRunsLessOften(t *testing.T) {
	p, now := NewPlanner(poll), time.Now()
	for range 999 {
		p.Done(KeyPass, now, Outcome{Took: time.Millisecond, More: true})
	}
	p.Done(KeyPass, now, Outcome{Took: time.Millisecond})
	v := streaming()
	if wait := p.at(KeyPass, v).Sub(now); wait < 50*time.Second {
		t.Errorf("a pass whose pages took a second runs again after %s", wait)
	}
	v.Suspicious = true
	if wait := p.at(KeyPass, v).Sub(now); wait > poll {
		t.Errorf("where the keys are not known it runs again after %s", wait)
	}
	p.Done(KeyPass, now, Outcome{Took: time.Millisecond})
	if wait := p.at(KeyPass, streaming()).Sub(now); wait > keyPassSafety+poll {
		t.Errorf("a short pass runs again after %s", wait)
	}
}

// The holder hears of rows that wait for a time, and knows when the first of the others is due.
func TestNothingIsLookedForBeforeItIsDue(t *testing.T) {
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
		v.DueMoved = one.moved
		if got := p.at(Due, v).Sub(now); got != one.want {
			t.Errorf("%+v: looks again after %s", one, got)
		}
		if got := p.at(Due, View{PublisherReady: true, Room: true}).Sub(now); got != poll {
			t.Errorf("who does not stream looks again after %s", got)
		}
		v.StreamLive = false
		if got := p.at(Due, v).Sub(now); got != poll {
			t.Errorf("whose stream is silent looks again after %s", got)
		}
		v.StreamLive = true
	}
}

// One long run may have been a server that stood still: what is due must not wait for it.
func TestASweepThatWaitedOnceRunsAgainSoon(t *testing.T) {
	p, now := NewPlanner(poll), time.Now()
	for _, took := range []time.Duration{time.Millisecond, 29 * time.Second, time.Millisecond, 29 * time.Second} {
		p.Done(Due, now, Outcome{Took: took})
		if at := p.at(Due, streaming()); at.Sub(now) > poll {
			t.Errorf("after %s it runs again after %s", took, at.Sub(now))
		}
	}
}

func TestWhoDoesNotHoldTheSlotTakesUnclaimedRowsOnlyWhileNobodyDoes(t *testing.T) {
	standby := View{PublisherReady: true, Room: true}
	p, now := NewPlanner(poll), time.Now()
	ran, _ := settle(p, now, standby)
	ranOnly(t, ran, Due, SlotCheck)
	standby.SlotFree = true
	ran, _ = settle(p, now.Add(poll), standby)
	ranOnly(t, ran, Unclaimed, Due, SlotCheck)

	ran, _ = settle(NewPlanner(poll), now, View{Polling: true, PublisherReady: true, Room: true})
	ranOnly(t, ran, Due, Unclaimed)
}

func TestNoSweepStarvesAnother(t *testing.T) {
	p, now := NewPlanner(poll), time.Now()
	v := streaming()
	v.Leftovers, v.Keys, v.Suspicious = true, true, true
	ran := map[Sweep]int{}
	for range 40 {
		sweep, _ := p.Next(now, v)
		ran[sweep]++
		now = now.Add(time.Millisecond)
		p.Done(sweep, now, Outcome{More: true})
	}
	for _, sweep := range []Sweep{Due, Leftovers, KeyPass, KeyRows} {
		if ran[sweep] < 8 {
			t.Errorf("sweep %d ran %d of 40 times: %v", sweep, ran[sweep], ran)
		}
	}
}

func TestAQuietHolderSleepsUntilWorkIsPlanned(t *testing.T) {
	p, now := NewPlanner(poll), time.Now()
	settle(p, now, streaming())
	p.Done(Due, now, Outcome{Quiet: time.Hour})
	if _, wait := p.Next(now, streaming()); wait != 5*poll {
		t.Errorf("it waits for %s, want five intervals until it looks for what is due", wait)
	}
	v := streaming()
	v.PublisherReady = false
	if _, wait := p.Next(now, v); wait != poll {
		t.Errorf("without a publisher it waits for %s, want %s", wait, poll)
	}
}

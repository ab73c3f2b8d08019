// Package fallback decides when to sweep the table, and for what. It is pure: it
// is told the time and how things stand, and names the next sweep. The statements
// are the store's, the messages are the relay's.
package fallback

import (
	"time"
)

// Sweep is one kind of query on the outbox table. docs/architecture.md tells the
// classes of rows apart.
type Sweep uint8

// The sweeps.
const (
	// None: nothing is to be done now.
	None Sweep = iota
	// Due claims rows whose time has come.
	Due
	// Leftovers reads a page of rows without a key that nobody has claimed, from the beginning of the
	// table: for the holder of the slot.
	Leftovers
	// Spilled reads such a page from the first row on that the stream has left: for the holder.
	Spilled
	// KeyPass reads a page of the keys that have rows: for the holder of the slot.
	KeyPass
	// KeyRows reads the first rows of keys that go by the table: for the holder.
	KeyRows
	// Unclaimed claims rows that nobody has claimed: while nobody holds the slot, or
	// where the relay only polls.
	Unclaimed
	// Follow claims the next rows of keys of which claimed ones have left: for whoever may
	// claim rows with a key.
	Follow
	// SlotCheck asks whether somebody holds the slot: for those who do not.
	SlotCheck
	sweeps
)

// View is how things stand.
type View struct {
	// Polling: the relay never streams.
	Polling bool
	// Holder: this relay holds the slot.
	Holder bool
	// StreamLive: the holder's stream was heard of lately.
	StreamLive bool
	// SlotFree: nobody holds the slot, by the last SlotCheck.
	SlotFree bool
	// PublisherReady: messages can be published now.
	PublisherReady bool
	// Room: there is room in the window for a page.
	Room bool
	// Leftovers: rows without a key may be anywhere in the table.
	Leftovers bool
	// Spilled: the stream has left rows without a key.
	Spilled bool
	// Keys: keys wait to be fetched.
	Keys bool
	// KeysFull: so many that a pass would find no place for more.
	KeysFull bool
	// Suspicious: it is not known which keys have rows.
	Suspicious bool
	// DueMoved: since the last sweep for what is due, a row was written or streamed that
	// has a time of its own.
	DueMoved bool
	// Moved: of some keys claimed rows have left, and a claim may find the next.
	Moved bool
	// Rested is when a resting key is to be looked at again; zero: none rests.
	Rested time.Time
}

// Outcome is what came of a sweep.
type Outcome struct {
	Took time.Duration
	// More: the page was full, or the pass goes on; there is more to read at once.
	More bool
	// Quiet is how long nothing will be due, as far as the table told; 0 where it did not.
	Quiet time.Duration
}

// LeftoverSafety and what follows is how often the holder looks at the table though nothing asks for
// it, or nothing that has to: for whatever nobody has thought of.
const (
	LeftoverSafety = 30 * time.Second
	keyPassSafety  = 5 * time.Second
	dueSafety      = 5 // poll intervals: others may write a time into the table
)

// safetyFactor bounds the share of a walk through the table that nothing asks for: a long transaction keeps
// millions of dead rows from being cleaned up, and each walk passes all of them.
const (
	safetyFactor  = 1000
	safetyAtLeast = 10 * time.Minute // a server that stood still makes any walk look long
)

// SafetyAfter is how long after a walk that took so long to find a row the next one comes that nothing
// asks for, or nothing that has to.
func SafetyAfter(took time.Duration) time.Duration {
	return min(max(LeftoverSafety, safetyFactor*took), safetyAtLeast)
}

// costFactor bounds a sweep's share of the time: one that takes a second and finds the
// end is not run again for twenty. One that took long once may have waited for a server
// that stood still, so the shorter of two runs counts.
const costFactor = 20

// keyPassFactor is the same for passes over the keys that nothing asks for.
const keyPassFactor = 50

// Planner keeps when each sweep is to be run next. It belongs to one goroutine.
type Planner struct {
	pollInterval time.Duration
	next         [sweeps]time.Time
	// underWay tells of a pass that has not read to its end.
	underWay [sweeps]bool
	// took is how long the longest page took of the newest run that found the end, and taking
	// that of the run under way: the first page may have to walk over millions of dead rows.
	took, taking [sweeps]time.Duration
	// passTook is how long the pages of the newest pass took, passing those of the pass
	// under way: a pass over a million keys has thousands.
	passTook, passing [sweeps]time.Duration
	// quietUntil is when something is due again, if nothing moves.
	quietUntil time.Time
}

// NewPlanner makes a planner that polls at an interval.
func NewPlanner(pollInterval time.Duration) *Planner { return &Planner{pollInterval: pollInterval} }

// Next names the sweep to run now, or None and how long to wait for one unless
// things change.
func (p *Planner) Next(now time.Time, v View) (Sweep, time.Duration) {
	best, wait := None, p.pollInterval
	if v.quiet() {
		wait *= dueSafety
	}
	for sweep := Due; sweep < sweeps; sweep++ {
		if !v.wants(sweep) || (sweep == Spilled && !p.readsSpilled(v)) {
			continue
		}
		at := p.at(sweep, v)
		if delay := at.Sub(now); delay > 0 {
			wait = min(wait, delay)
			continue
		}
		// Of those that are due the one that waits longest: none starves another.
		if best == None || at.Before(p.at(best, v)) {
			best = sweep
		}
	}
	if !v.Rested.IsZero() {
		wait = min(wait, max(v.Rested.Sub(now), time.Millisecond))
	}
	if best != None {
		return best, 0
	}
	return None, wait
}

// quiet holds where whatever asks for a sweep before its time wakes the sweeper.
func (v View) quiet() bool { return v.Holder && v.StreamLive && v.PublisherReady && v.Room }

// wants tells whether a sweep makes sense at all.
func (v View) wants(s Sweep) bool {
	open := v.PublisherReady && v.Room
	switch s {
	case Due:
		return open
	case Leftovers, Spilled:
		return open && v.Holder
	case KeyPass:
		return v.Holder && v.PublisherReady && !v.KeysFull
	case KeyRows:
		return open && v.Holder && v.Keys
	case Unclaimed:
		return open && (v.Polling || (!v.Holder && v.SlotFree))
	case Follow:
		return open && v.Moved && (v.Holder || v.Polling || v.SlotFree)
	case SlotCheck:
		return !v.Polling && !v.Holder
	}
	return false
}

// readsSpilled: a pass that has begun goes on. One through the table comes to what was spilled, too.
func (p *Planner) readsSpilled(v View) bool {
	return (v.Spilled || p.underWay[Spilled]) && !p.underWay[Leftovers]
}

// at is when a sweep is due. What is asked for comes sooner than the safety interval.
func (p *Planner) at(s Sweep, v View) time.Time {
	at := p.next[s]
	switch {
	case at.IsZero(), p.underWay[s]:
		return at
	case s == Leftovers && !v.Leftovers && v.StreamLive:
		return at.Add(SafetyAfter(p.took[s]))
	case s == KeyPass && !v.Suspicious:
		return at.Add(max(keyPassSafety, keyPassFactor*p.passTook[s]))
	case s == Due && v.Holder && v.StreamLive && !v.DueMoved && p.quietUntil.After(at):
		return p.quietUntil
	}
	return at
}

// Done notes what came of a sweep.
func (p *Planner) Done(s Sweep, now time.Time, o Outcome) {
	p.underWay[s] = o.More
	if s == Due {
		p.quietUntil = now.Add(min(o.Quiet, dueSafety*p.pollInterval))
	}
	if p.passing[s] += o.Took; !o.More {
		p.passTook[s], p.passing[s] = p.passing[s], 0
	}
	p.taking[s] = max(p.taking[s], o.Took)
	switch {
	case o.More, s == KeyRows, s == Follow:
		p.next[s] = now
	default:
		p.next[s] = now.Add(max(p.pollInterval, costFactor*min(p.taking[s], p.took[s])))
		p.took[s], p.taking[s] = p.taking[s], 0
	}
}

// Hurry has a sweep run again at once: things have changed.
func (p *Planner) Hurry(s Sweep) { p.next[s] = time.Time{} }

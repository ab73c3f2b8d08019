// Package fallback takes rows from the table that the stream does not bring: it plans when to look for which, finds them,
// and claims them. A claim is a transaction that holds the rows locked until the broker has answered.
package fallback

import (
	"time"
)

// Sweep is one kind of query on the outbox table.
type Sweep uint8

// The sweeps.
const (
	// None: nothing is to be done now.
	None Sweep = iota
	// Due claims rows whose time has come.
	Due
	// Backlog claims rows without a key or a time of their own.
	Backlog
	// Keys claims the oldest rows of ordering keys, and what follows them.
	Keys
	// SlotCheck asks whether somebody owns the slot: for those who do not.
	SlotCheck
	sweeps
)

// String is its name in the log.
func (s Sweep) String() string {
	return [...]string{"none", "due", "backlog", "keys", "slot check"}[s]
}

// View is how things stand.
type View struct {
	// Leader: this relay owns the slot. Live: its stream was heard of lately.
	Leader, Live bool
	// Rest is how long this relay still takes only what is due.
	Rest time.Duration
	// TakesFresh: this relay may claim rows without a time of their own: it leads, or nobody does.
	TakesFresh bool
	// Ready: messages can be published now, and there is room for a claim.
	Ready bool
	// Backlog: rows without a key wait to be looked at.
	Backlog bool
	// Unseen: transactions may become visible of which rows are in the table.
	Unseen bool
	// Wanted: keys are to be looked up. Unlisted: keys that nobody asks for may have rows.
	Wanted, Unlisted bool
	// Due: a row has got a time of its own since the last sweep for those.
	Due bool
}

// Outcome is what came of a sweep.
type Outcome struct {
	// Took is how long it took to find a row.
	Took time.Duration
	// More: the pass goes on at once.
	More bool
	// Quiet is how long nothing will be due, according to the table.
	Quiet time.Duration
}

// Now and then the table is scanned though nothing asks for it, in case of a bug.
const (
	backlogSafety = 30 * time.Second
	keysSafety    = 5 * time.Second
	dueSafety     = 5 // poll intervals: others may write a time into the table
)

// safetyFactor bounds the share of a walk through the table that nothing asks for: a long transaction keeps
// millions of dead rows from being cleaned up, and each walk passes all of them.
const (
	safetyFactor  = 1000
	safetyAtLeast = 10 * time.Minute // a server that stood still makes any walk look long
)

// safetyAfter is how long after a walk that took so long to find a row the next one comes that nothing asks for.
func safetyAfter(took time.Duration) time.Duration {
	return min(max(backlogSafety, safetyFactor*took), safetyAtLeast)
}

// costFactor bounds a sweep's share of the time: one that takes a second and finds the
// end is not run again for twenty. One that took long once may have waited for a server
// that stood still, so the shorter of two runs counts.
const costFactor = 20

// keysFactor is the same for passes over the keys that nothing asks for.
const keysFactor = 50

// Planner keeps when each sweep is to be run next. It belongs to one goroutine.
type Planner struct {
	pollInterval time.Duration
	next         [sweeps]time.Time
	// underWay tells of a pass that has not read to its end.
	underWay [sweeps]bool
	// took is how long the longest page took of the newest run that found the end, and taking
	// that of the run under way: the first page may have to walk over millions of dead rows.
	took, taking [sweeps]time.Duration
	// passTook is how long the pages of the newest pass took, passing those of the pass under way.
	passTook, passing [sweeps]time.Duration
	// quietUntil is when something is due again, if nothing moves.
	quietUntil time.Time
	// looked is when a snapshot was last asked for.
	looked time.Time
	// wantedAt is when keys are looked up next that are wanted.
	wantedAt time.Time
}

// NewPlanner makes a planner that polls at an interval.
func NewPlanner(pollInterval time.Duration) *Planner { return &Planner{pollInterval: pollInterval} }

// Next names the sweep to run now, or None and how long to wait for one unless things change.
func (p *Planner) Next(now time.Time, v View) (Sweep, time.Duration) {
	best, wait := None, p.pollInterval
	if v.Leader && v.Live && v.Ready { // all that asks for a sweep wakes the sweeper
		wait *= dueSafety
	}
	if v.Rest > 0 {
		wait = min(wait, v.Rest)
	}
	for sweep := Due; sweep < sweeps; sweep++ {
		if !v.wants(sweep) {
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
	if best != None {
		return best, 0
	}
	return None, wait
}

// wants tells whether a sweep makes sense at all.
func (v View) wants(s Sweep) bool {
	switch s {
	case Due:
		return v.Ready
	case Backlog:
		return (v.TakesFresh && v.Ready) || v.Unseen
	case Keys:
		return v.TakesFresh && v.Ready
	case SlotCheck:
		return !v.Leader
	}
	return false
}

// at is when a sweep is due. What is asked for comes sooner than the safety interval.
func (p *Planner) at(s Sweep, v View) time.Time {
	if s == Keys && v.Wanted && p.wantedAt.Before(p.keysAt(v)) {
		return p.wantedAt
	}
	if s == Keys {
		return p.keysAt(v)
	}
	at := p.next[s]
	switch {
	case s == Backlog && !v.Ready: // only what has become visible is asked for
		return p.looked.Add(p.pollInterval)
	case at.IsZero(), p.underWay[s], !v.Leader || !v.Live:
		return at
	case s == Backlog && !v.Backlog && !v.Unseen:
		return at.Add(safetyAfter(p.took[s]))
	case s == Due && !v.Due && p.quietUntil.After(at):
		return p.quietUntil
	}
	return at
}

// keysAt is when the next page of a pass over all keys is due.
func (p *Planner) keysAt(v View) time.Time {
	at := p.next[Keys]
	if at.IsZero() || p.underWay[Keys] || !v.Leader || !v.Live || v.Unlisted {
		return at
	}
	return at.Add(max(keysSafety, keysFactor*p.passTook[Keys]))
}

// Done notes what came of a sweep.
func (p *Planner) Done(s Sweep, now time.Time, o Outcome) {
	if s == Due {
		p.quietUntil = now.Add(min(o.Quiet, dueSafety*p.pollInterval))
	}
	p.underWay[s] = o.More
	if p.passing[s] += o.Took; !o.More {
		p.passTook[s], p.passing[s] = p.passing[s], 0
	}
	p.taking[s] = max(p.taking[s], o.Took)
	if o.More {
		p.next[s] = now
		return
	}
	p.next[s] = now.Add(max(p.pollInterval, costFactor*min(p.taking[s], p.took[s])))
	p.took[s], p.taking[s] = p.taking[s], 0
}

// LookedUp notes that wanted keys were looked up, and when to do so again.
func (p *Planner) LookedUp(now time.Time, again time.Duration) { p.wantedAt = now.Add(again) }

// Reset has a sweep run again at once.
func (p *Planner) Reset(s Sweep) { p.next[s], p.underWay[s] = time.Time{}, false }

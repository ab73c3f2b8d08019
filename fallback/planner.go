// Package fallback publishes the rows that the stream does not bring. It plans the sweeps, and reads the rows.
package fallback

import (
	"time"
)

// Sweep is one kind of query on the outbox table.
type Sweep uint8

const (
	// None: no sweep is due now.
	None Sweep = iota
	// Due reads rows whose available_at has come.
	Due
	// Lately reads the rows of Due that became due lately, while Due pauses or walks long: many due rows cannot leave.
	Lately
	// Backlog reads rows without a key and without a time.
	Backlog
	// Newest reads the rows of Backlog and Keys with the newest ids, while these pause or walk long.
	Newest
	// Keys reads the head of each ordering key, and rows behind it.
	Keys
	sweeps
)

// String returns the name in the log.
func (s Sweep) String() string {
	return [...]string{"none", "due", "lately", "backlog", "newest", "keys"}[s]
}

// Outcome is the result of a sweep.
type Outcome struct {
	// Took is the longest time that it took to find a row.
	Took time.Duration
	// More: the pass continues at once. Full: the pass has read a full page, so newer rows probably wait already.
	More, Full bool
	// Quiet is how long, according to the table, no row will become due.
	Quiet time.Duration
}

// The leader also scans the table without a reason: others may change rows, such as their time, and the stream does not
// bring an UPDATE. A change is noticed within this many poll intervals, and within noticedIn if these are short.
const (
	noticedAfter = 5
	noticedIn    = 5 * time.Second
)

// safetyFactor bounds the share of time for scans without a reason to half a percent. An old transaction can keep
// millions of dead rows, and each scan passes all of them.
const (
	safetyFactor  = 200
	safetyAtLeast = 10 * time.Minute // a server that was paused makes any scan look long
)

// costFactor bounds a sweep's share of the time: after one second of scanning it pauses for twenty. The shorter of two
// runs counts, because one slow run may have waited for a paused server.
const costFactor = 20

// keysFactor is the same bound for passes over all keys without a reason, and over all due rows.
const keysFactor = 50

// Planner decides when each sweep runs next. Only one goroutine may use it.
type Planner struct {
	pollInterval time.Duration
	passes       [sweeps]timing
	// quietUntil is when the next row is due, unless a row gets an earlier time.
	quietUntil time.Time
	// looked is when the last snapshot was taken.
	looked time.Time
	// wantedAt is when wanted keys were last looked up. againAt is when those may be looked up again of which nothing
	// could be read.
	wantedAt, againAt time.Time
}

// timing are the passes of one sweep.
type timing struct {
	// next is when a pass, or the next page of it, is due.
	next time.Time
	// underWay: the pass has more pages. began is when its first page was read, ended when the last complete pass
	// ended.
	underWay     bool
	began, ended time.Time
	// took is the longest page of the last complete pass, taking that of the current pass. The first page may have to
	// scan millions of dead rows.
	took, taking time.Duration
	// cost is the shorter took of the last two complete passes: one of them may have waited for a paused server.
	cost time.Duration
	// all is the time of all pages of the last complete pass, passing that of the current pass.
	all, passing time.Duration
}

// NewPlanner returns a planner with this poll interval.
func NewPlanner(pollInterval time.Duration) *Planner { return &Planner{pollInterval: pollInterval} }

// Next returns the sweep to run now, or None and how long to wait unless the state changes.
func (p *Planner) Next(now time.Time, r Role) (Sweep, time.Duration) {
	best, wait := None, p.pollInterval
	if r.Leader && r.Live && r.Ready { // every reason for a sweep wakes the sweeper
		wait *= noticedAfter
	}
	if r.Rest > 0 {
		wait = min(wait, r.Rest)
	}
	for sweep := Due; sweep < sweeps; sweep++ {
		if !r.wants(sweep) || sweep == Newest && !p.newestWait(now) || sweep == Lately && !p.duePauses() {
			continue
		}
		at := p.at(sweep, r)
		if delay := at.Sub(now); delay > 0 {
			wait = min(wait, delay)
			continue
		}
		// The sweep that has waited longest runs first, so that none starves.
		if best == None || at.Before(p.at(best, r)) {
			best = sweep
		}
	}
	if best != None {
		return best, 0
	}
	return None, wait
}

// wants reports whether a sweep can do anything in this state.
func (r Role) wants(s Sweep) bool {
	switch s {
	case Lately:
		return r.lately && r.Sweeps && r.Ready
	case Backlog:
		return r.Sweeps && r.Ready || r.Unseen
	case Newest: // a live stream brings these rows
		return r.newest && !r.Live && r.Sweeps && r.Ready
	}
	return r.Sweeps && r.Ready
}

// at returns when a sweep is due. A sweep with a reason does not wait for the safety interval.
func (p *Planner) at(s Sweep, r Role) time.Time {
	if s == Keys {
		at := p.keysAt(r)
		if r.Wanted+r.Yielding > 0 && p.wantedAt.Before(at) {
			at = p.wantedAt
		}
		if r.Again > 0 && p.againAt.Before(at) {
			at = p.againAt
		}
		return at
	}
	pass := &p.passes[s]
	switch {
	case s == Backlog && !r.Ready: // only look whether transactions have become visible
		return p.looked.Add(p.pollInterval)
	case pass.next.IsZero(), pass.underWay, !r.Leader || !r.Live:
		return pass.next
	case s == Backlog && !r.Backlog && !r.Unseen:
		return p.backlogUnasked()
	case s == Due && !r.Due && p.quietUntil.After(pass.next):
		return p.quietUntil
	}
	return pass.next
}

// pauses reports whether the next pass is more than a poll interval after the last one. Such a pass has found many rows
// that must not leave yet: scheduled ones, dead ones, or those behind the first row of their key.
func (p *Planner) pauses(s Sweep) bool {
	pass := &p.passes[s]
	return !pass.underWay && pass.next.Sub(pass.ended) > p.pollInterval
}

// newestWait reports whether new rows would wait for long.
func (p *Planner) newestWait(now time.Time) bool {
	long := func(s Sweep) bool { return p.passes[s].underWay && now.Sub(p.passes[s].began) > p.pollInterval }
	return p.pauses(Backlog) || long(Backlog) || long(Keys)
}

// duePauses reports whether due rows would wait for long, because Due pauses, or walks past rows that cannot leave.
func (p *Planner) duePauses() bool {
	return p.pauses(Due) || p.passes[Due].underWay && p.passes[Due].taking > p.pollInterval/2
}

// keysAt returns when the next page of a pass over all keys is due.
func (p *Planner) keysAt(r Role) time.Time {
	pass := &p.passes[Keys]
	if pass.next.IsZero() || pass.underWay || !r.Leader || !r.Live || r.Unlisted {
		return pass.next
	}
	return p.unasked(pass, keysFactor*pass.all)
}

// backlogUnasked returns when a pass over keyless rows runs without a reason.
func (p *Planner) backlogUnasked() time.Time {
	pass := &p.passes[Backlog]
	return p.unasked(pass, min(safetyFactor*pass.cost, safetyAtLeast))
}

// unasked returns when a sweep runs without a reason, at least some time after the last one.
func (p *Planner) unasked(pass *timing, pause time.Duration) time.Time {
	at := pass.ended.Add(max(noticedAfter*p.pollInterval, noticedIn, pause))
	if at.Before(pass.next) {
		return pass.next
	}
	return at
}

// Done records the result of a sweep.
func (p *Planner) Done(s Sweep, now time.Time, o Outcome) {
	pass, factor := &p.passes[s], time.Duration(costFactor)
	if s == Due { // while it pauses, Lately reads what becomes due
		factor = keysFactor
		p.quietUntil = now.Add(min(o.Quiet, noticedAfter*p.pollInterval))
	}
	if !pass.underWay {
		pass.began = now
	}
	pass.underWay = o.More
	pass.passing += o.Took
	pass.taking = max(pass.taking, o.Took)
	pass.next = now
	if o.More {
		return
	}
	pass.ended, pass.cost = now, min(pass.taking, pass.took)
	pass.took, pass.taking = pass.taking, 0
	pass.all, pass.passing = pass.passing, 0
	if !o.Full || factor*pass.cost >= p.pollInterval {
		pass.next = now.Add(max(p.pollInterval, factor*pass.cost))
	}
}

// hasten makes the next pass due as soon as its cost allows.
func (p *Planner) hasten(s Sweep) {
	if at := p.passes[s].ended.Add(costFactor * p.passes[s].cost); at.Before(p.passes[s].next) {
		p.passes[s].next = at
	}
}

// Reset makes a sweep due at once.
func (p *Planner) Reset(s Sweep) { p.passes[s].next, p.passes[s].underWay = time.Time{}, false }

package core

import (
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// lease is how certainly this relay leads. The server may give the lock to another relay while this process is paused
// or disconnected. So a row leaves only shortly after a moment at which this relay led, and a new leader leaves older
// rows alone until the previous leader can no longer publish them. The core's lock guards it.
//
//	owned    +LateAfter        +CertainFor              +WriteFor                +wayToBroker
//	|        |                 |                        |                        |
//	row is   rows wait until   sent messages are        no unmarked message      no unmarked message
//	taken    the server was    marked                   is written               arrives (RestFor)
//	         asked
type lease struct {
	// owned is the last time at which this relay certainly had the lock.
	owned time.Time
	// restUntil: until then the previous leader may still publish older rows, unmarked.
	restUntil time.Time
}

const (
	// LateAfter is how long the leader takes rows after it certainly had the lock. Later rows wait until the server was
	// asked, or stay in the table. A new leader takes none as long.
	LateAfter = outbox.CertainFor / 2
	// RestFor is how long after the lock became free the previous leader may still publish rows, unmarked.
	RestFor = outbox.CertainFor + outbox.WriteFor + wayToBroker
	// wayToBroker is the time for a written message to reach the broker.
	wayToBroker = 200 * time.Millisecond
)

// takenOver returns the lease of a new leader, until it knows when it had the lock.
func takenOver(free time.Time) (l lease) {
	if !free.IsZero() {
		l.restUntil = free.Add(RestFor)
	}
	return l
}

// late reports whether another relay may lead by now.
func (l *lease) late(now time.Time) bool { return outbox.Elapsed(l.owned, now) > LateAfter }

// late reports whether another relay may lead by now. It asks for a proof before that, so that busy relays do not wait.
func (c *Core) late() bool {
	if outbox.Elapsed(c.mu.lease.owned, c.mu.now) > LateAfter/2 {
		c.Doubted.Send()
	}
	return c.mu.lease.late(c.mu.now)
}

// rest returns how long the leader still leaves older rows alone.
func (l *lease) rest(now time.Time) time.Duration { return max(l.restUntil.Sub(now), 0) }

// Owned records a time at which this relay certainly had the lock.
func (c *Core) Owned(at time.Time) {
	c.lock()
	defer c.mu.Unlock()
	if c.mu.term.leader && at.After(c.mu.lease.owned) {
		c.mu.lease.owned = at
		c.Room.Send()
		c.Wake.Send()
	}
}

// Certain reports whether this relay certainly leads, or does not believe that it does.
func (c *Core) Certain() bool {
	c.lock()
	defer c.mu.Unlock()
	return !c.mu.term.leader || !c.late()
}

// Quiet reports whether no message of this relay or of the leader before it can be on its way to the broker. If so,
// only rows up to an id may have been published before without a mark in the table.
func (c *Core) Quiet() (older int64, quiet bool) {
	c.lock()
	defer c.mu.Unlock()
	lost := outbox.Elapsed(c.mu.marks.lost, c.mu.now) <= RestFor
	return c.mu.marks.older, c.mu.window.messages == 0 && !lost && c.mu.lease.rest(c.mu.now) == 0
}

// ServerClock is a time on the server's clock, and a time of this process that is not later.
type ServerClock struct{ Ours, Server time.Time }

// AtLeast converts a time of the server to one of this process that is not later. It is too early by the time that the
// comparison of the clocks took.
func (c ServerClock) AtLeast(server time.Time) time.Time { return c.Ours.Add(server.Sub(c.Server)) }

// Behind reports whether the server's clock has been set back since an earlier comparison.
func (c ServerClock) Behind(earlier ServerClock) bool {
	return c.Ours.Sub(earlier.AtLeast(c.Server)) > time.Minute
}

package core

import (
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// lease is how certainly this relay owns the slot. The server may give the slot to another relay while this process is
// paused or disconnected. So a streamed row leaves only shortly after a moment at which this relay owned the slot, and
// a new leader leaves older rows alone until the previous leader can no longer publish them. The core's lock guards it.
//
//	owned    +LateAfter        +CertainFor              +WriteFor                +wayToBroker
//	|        |                 |                        |                        |
//	row is   rows wait until   sent messages are        no unmarked message      no unmarked message
//	streamed the server was    marked                   is written               arrives (RestFor)
//	         asked
type lease struct {
	// owned is the last time at which this relay certainly owned the slot.
	owned time.Time
	// restUntil: until then the previous leader may still publish streamed rows, unmarked.
	restUntil time.Time
}

const (
	// LateAfter is how long the leader publishes streamed rows after it certainly owned the slot. Later rows wait until
	// the database was asked, or stay in the table.
	LateAfter = outbox.CertainFor / 2
	// RestFor is how long after the slot became free the previous leader may still publish streamed rows, unmarked.
	RestFor = outbox.CertainFor + outbox.WriteFor + wayToBroker
	// wayToBroker is the time for a written message to reach the broker.
	wayToBroker = 200 * time.Millisecond
)

// takenOver returns the lease of a new leader, until it knows when it owned the slot. FreeSince is since when nobody
// owned the slot; zero: this relay was the last owner.
func takenOver(freeSince time.Time) (l lease) {
	if !freeSince.IsZero() {
		l.restUntil = freeSince.Add(RestFor)
	}
	return l
}

// late reports whether another relay may own the slot by now.
func (l *lease) late(now time.Time) bool { return outbox.Elapsed(l.owned, now) > LateAfter }

// rest returns how long the leader still leaves older rows alone.
func (l *lease) rest(now time.Time) time.Duration { return max(l.restUntil.Sub(now), 0) }

// Owned records a time at which this relay certainly owned the slot.
func (c *Core) Owned(at time.Time) {
	c.lock()
	defer c.mu.Unlock()
	if c.mu.term.leader && at.After(c.mu.lease.owned) {
		c.mu.lease.owned = at
		c.Room.Send()
	}
}

// doubt makes the leader ask the database who owns the slot before it publishes more streamed rows.
func (c *Core) doubt() {
	c.mu.lease.owned = time.Time{}
	c.Doubted.Send()
}

// ServerClock is a time on the server's clock, and a time of this process that is not later.
type ServerClock struct{ Ours, Server time.Time }

// Behind reports whether the server's clock has been set back since an earlier comparison.
func (c ServerClock) Behind(earlier ServerClock) bool {
	return c.Ours.Sub(earlier.AtLeast(c.Server)) > time.Minute
}

// AtLeast converts a time of the server to one of this process that is not later. It is too early by the time that the
// comparison of the clocks took.
func (c ServerClock) AtLeast(server time.Time) time.Time { return c.Ours.Add(server.Sub(c.Server)) }

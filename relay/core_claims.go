package relay

import (
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
)

// claimed takes rows that a claim brought, whoever holds the slot, and returns those
// to publish; those that follow in their key are queued behind it. Unseen tells that they
// had never been claimed before, so that somebody who streams may have published them.
// Where the answer took as long as the lease, another relay may have claimed and
// published them meanwhile.
func (s *sweep) claimed(page store.Page, lease time.Duration, unseen bool) (publish []*outbox.Message) {
	c := s.core
	c.lock()
	defer c.mu.Unlock()
	late := elapsed(s.began, c.mu.movedAt) >= lease
	c.mu.lease = lease
	var keys runs
	for _, m := range page.Messages {
		switch standing := c.mu.registry.standing(m.Ref()); {
		case standing == held || standing == confirmed:
			continue // its lease ran out on the way; what became of it is written soon
		case standing == givenBack: // likewise, and what follows it must not overtake it
			keys.end(m)
			continue
		case standing == deleted && c.mu.registry.goneMeanwhile(m.Ref()):
			continue // likewise, and what became of it is written; a dead letter was sent back before the claim
		}
		if late || (unseen && m.ID <= c.mu.boundary) || c.mayBeKnownToBroker(m) {
			m.PossibleDuplicate = true
		}
		c.hold(m, page.Position)
		switch {
		case m.OrderingKey == nil:
			s.held++
			publish = append(publish, m)
		case keys.add(m):
			s.held++
		default:
			c.leaveQueued([]*outbox.Message{m})
		}
	}
	for _, one := range keys.all {
		for _, m := range one.messages {
			m.TakenAt = s.began // while it is queued: its lease began no sooner
		}
		m, behind := c.mu.gate.claimed(one.key, one.messages)
		if m != nil {
			m.TakenAt = c.mu.movedAt
			publish = append(publish, m)
		}
		c.leaveQueued(behind)
	}
	if c.mu.stopping {
		c.dropQueues()
	}
	return publish
}

// runs are claimed rows by their keys, in the order in which these come first.
type runs struct {
	all []*claimedRun
	of  map[string]*claimedRun
}

type claimedRun struct {
	key      string
	messages []*outbox.Message
	ended    bool
}

func (r *runs) run(m *outbox.Message) *claimedRun {
	key := *m.OrderingKey
	one := r.of[key]
	if one == nil {
		if r.of == nil {
			r.of = make(map[string]*claimedRun)
		}
		one = &claimedRun{key: key}
		r.all, r.of[key] = append(r.all, one), one
	}
	return one
}

// add takes a row in, or says that it comes after the end of its run.
func (r *runs) add(m *outbox.Message) bool {
	one := r.run(m)
	if !one.ended {
		one.messages = append(one.messages, m)
	}
	return !one.ended
}

// end ends the run of a row's key before it.
func (r *runs) end(m *outbox.Message) {
	if m.OrderingKey != nil {
		r.run(m).ended = true
	}
}

// takeMovedMany tells, once, that more keys have moved than are remembered.
func (c *core) takeMovedMany() bool {
	c.lock()
	defer c.mu.Unlock()
	many := c.mu.movedMany
	c.mu.movedMany = false
	return many
}

// takeMoved hands out keys of which a claim may find the next rows, at most n.
func (c *core) takeMoved(n int) (keys []string) {
	c.lock()
	defer c.mu.Unlock()
	for key := range c.mu.moved {
		if len(keys) >= n {
			break
		}
		delete(c.mu.moved, key)
		keys = append(keys, key)
	}
	return keys
}

// notFollowed puts keys back for which there was no room, or no answer.
func (c *core) notFollowed(keys []string) {
	c.lock()
	defer c.mu.Unlock()
	for _, key := range keys {
		c.keyMoved(key)
	}
}

package handler

import (
	"container/list"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// pending has the unanswered messages of a handler, oldest first.
type pending struct {
	order *list.List // of *pendingMessage
	byID  map[outbox.UUID][]*pendingMessage
	// since is when the oldest message became the oldest.
	since time.Time
}

// pendingMessage is one such message. Several may share a message_id; answers go to them in order.
type pendingMessage struct {
	message *outbox.Message
	place   *list.Element // nil: it has its answer
}

func newPending() *pending {
	return &pending{order: list.New(), byID: make(map[outbox.UUID][]*pendingMessage)}
}

func (p *pending) add(m *outbox.Message) *pendingMessage {
	one := &pendingMessage{message: m}
	if p.order.Len() == 0 {
		p.since = time.Now()
	}
	one.place = p.order.PushBack(one)
	p.byID[m.MessageID] = append(p.byID[m.MessageID], one)
	return one
}

// find returns the oldest message with the id, or nil.
func (p *pending) find(id outbox.UUID) *pendingMessage {
	if all := p.byID[id]; len(all) > 0 {
		return all[0]
	}
	return nil
}

// remove removes a message, and reports whether it was there.
func (p *pending) remove(one *pendingMessage) bool {
	if one.place == nil {
		return false
	}
	if p.order.Front() == one.place {
		p.since = time.Now()
	}
	p.order.Remove(one.place)
	one.place = nil
	id := one.message.MessageID
	for i, other := range p.byID[id] {
		if other == one {
			p.byID[id] = append(p.byID[id][:i:i], p.byID[id][i+1:]...)
		}
	}
	if len(p.byID[id]) == 0 {
		delete(p.byID, id)
	}
	return true
}

func (p *pending) oldest() *pendingMessage {
	if front := p.order.Front(); front != nil {
		return front.Value.(*pendingMessage)
	}
	return nil
}

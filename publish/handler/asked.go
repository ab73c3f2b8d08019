package handler

import (
	"container/list"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// asked has the unanswered messages of a handler, oldest first.
type asked struct {
	order *list.List // of *askedMessage
	byID  map[outbox.UUID][]*askedMessage
	// since is when the oldest message became the oldest.
	since time.Time
}

// askedMessage is one such message. Several may share a message_id; answers go to them in order.
type askedMessage struct {
	message *outbox.Message
	place   *list.Element // nil: it has its answer
}

func newAsked() *asked {
	return &asked{order: list.New(), byID: make(map[outbox.UUID][]*askedMessage)}
}

func (a *asked) add(m *outbox.Message) *askedMessage {
	one := &askedMessage{message: m}
	if a.order.Len() == 0 {
		a.since = time.Now()
	}
	one.place = a.order.PushBack(one)
	a.byID[m.MessageID] = append(a.byID[m.MessageID], one)
	return one
}

// find returns the oldest message with the id, or nil.
func (a *asked) find(id outbox.UUID) *askedMessage {
	if all := a.byID[id]; len(all) > 0 {
		return all[0]
	}
	return nil
}

// remove removes a message, and reports whether it was there.
func (a *asked) remove(one *askedMessage) bool {
	if one.place == nil {
		return false
	}
	if a.order.Front() == one.place {
		a.since = time.Now()
	}
	a.order.Remove(one.place)
	one.place = nil
	id := one.message.MessageID
	for i, other := range a.byID[id] {
		if other == one {
			a.byID[id] = append(a.byID[id][:i:i], a.byID[id][i+1:]...)
		}
	}
	if len(a.byID[id]) == 0 {
		delete(a.byID, id)
	}
	return true
}

func (a *asked) oldest() *askedMessage {
	if front := a.order.Front(); front != nil {
		return front.Value.(*askedMessage)
	}
	return nil
}

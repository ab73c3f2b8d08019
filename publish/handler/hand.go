package handler

import (
	"container/list"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// hand has the unanswered messages of a handler, oldest first.
type hand struct {
	order *list.List // of *held
	byID  map[outbox.UUID][]*held
	// since is when the oldest message became the oldest.
	since time.Time
}

// held is one such message. Several may share a message_id; answers go to them in order.
type held struct {
	message *outbox.Message
	place   *list.Element // nil: it has its answer
}

func newHand() *hand { return &hand{order: list.New(), byID: make(map[outbox.UUID][]*held)} }

func (h *hand) add(m *outbox.Message) *held {
	one := &held{message: m}
	if h.order.Len() == 0 {
		h.since = time.Now()
	}
	one.place = h.order.PushBack(one)
	h.byID[m.MessageID] = append(h.byID[m.MessageID], one)
	return one
}

// find returns the oldest message with the id, or nil.
func (h *hand) find(id outbox.UUID) *held {
	if all := h.byID[id]; len(all) > 0 {
		return all[0]
	}
	return nil
}

// remove removes a message, and reports whether it was there.
func (h *hand) remove(one *held) bool {
	if one.place == nil {
		return false
	}
	if h.order.Front() == one.place {
		h.since = time.Now()
	}
	h.order.Remove(one.place)
	one.place = nil
	id := one.message.MessageID
	for i, other := range h.byID[id] {
		if other == one {
			h.byID[id] = append(h.byID[id][:i:i], h.byID[id][i+1:]...)
		}
	}
	if len(h.byID[id]) == 0 {
		delete(h.byID, id)
	}
	return true
}

func (h *hand) oldest() *held {
	if front := h.order.Front(); front != nil {
		return front.Value.(*held)
	}
	return nil
}

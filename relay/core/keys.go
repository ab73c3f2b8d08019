package core

import (
	"cmp"
	"slices"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// keys keeps the order of each ordering key: one message in flight, the next ones in the order of their ids. A key is
// remembered while it has a message in memory or rows in the table. It goes directly, from the stream into flight, or by
// the table: then claims bring its rows, and streamed ones are left there. It belongs to the core and its lock.
type keys struct {
	byKey map[string]*keyState
	limit int
	// bytes is the length of all remembered keys together.
	bytes int
	// queued counts the messages in all queues.
	queued int
	// wanted are keys to be looked up in the table, in the order in which they asked.
	wanted []string
	// unlisted: a key that is not remembered may have rows in the table, and goes by the table. It ends with a pass over
	// all keys that could see the transactions up to the number missed, and remembered each key that it did not claim.
	unlisted bool
	missed   uint64
	// pass numbers the passes over all keys.
	pass int
	// leads: the relay owns the slot. Others remember keys only for what they have in memory.
	leads bool
}

// keyState is what is known of one ordering key.
type keyState struct {
	place place
	// flying is the message in flight that no claim holds.
	flying *outbox.Message
	// queue are streamed messages that follow it, oldest first.
	queue []*outbox.Message
	// left is the number of the newest transaction of which a row was left in the table.
	left uint64
	// pass is the newest pass over all keys that has seen a row of it.
	pass int
}

// place is how a key goes.
type place uint8

const (
	directly place = iota // no row of it waits in the table
	behind                // rows wait in the table until what is in flight is settled
	wanted                // it stands in wanted
	claimed               // it is being looked up, or a claim holds its rows
	parked                // its oldest row must not leave yet
)

// mostKeyBytes bounds the length of all remembered keys together: one may have 2,684 bytes.
const mostKeyBytes = 16 << 20

// mostQueued bounds what one key may hold in memory behind its message in flight.
const mostQueued = 64

func newKeys(limit int) keys {
	return keys{byKey: make(map[string]*keyState), limit: limit, unlisted: true}
}

// passage is what becomes of a streamed message.
type passage uint8

const (
	goes passage = iota + 1
	queues
	waits
)

// streamed says what to do with a message from the stream. Room tells whether it may be queued.
func (o *keys) streamed(m *outbox.Message, room bool) passage {
	k := o.byKey[*m.OrderingKey]
	switch {
	case k == nil && !o.unlisted:
		o.add(*m.OrderingKey, &keyState{flying: m})
		return goes
	case k != nil && k.place == directly && room && len(k.queue) < mostQueued:
		k.queue = append(k.queue, m)
		o.queued++
		return queues
	}
	return waits
}

func (o *keys) add(key string, k *keyState) {
	o.byKey[key] = k
	o.bytes += len(key)
}

func (o *keys) drop(key string) {
	delete(o.byKey, key)
	o.bytes -= len(key)
}

// remember returns the key's state, or nil if there are too many keys: then all that are not remembered go by the table.
func (o *keys) remember(key string) *keyState {
	if k := o.byKey[key]; k != nil {
		return k
	}
	if len(o.byKey) >= o.limit || o.bytes+len(key) > mostKeyBytes {
		return nil
	}
	k := &keyState{place: behind, pass: o.pass}
	if o.unlisted {
		k.left = o.missed
	}
	o.add(key, k)
	return k
}

// miss notes that rows of keys that are not remembered are in the table.
func (o *keys) miss(seq uint64) {
	o.unlisted, o.missed = true, max(o.missed, seq)
	o.pass++ // the pass under way may have read past them
}

// leave notes that a row of the key stays in the table. It tells whether the key is to be looked up.
func (o *keys) leave(key string, seq uint64) bool {
	k := o.remember(key)
	if k == nil {
		o.miss(seq)
		return false
	}
	k.left = max(k.left, seq)
	if k.place == directly {
		k.place = behind
	}
	return o.look(key, k)
}

// look has a key looked up in the table once nothing of it is in flight.
func (o *keys) look(key string, k *keyState) bool {
	if k.place != behind || k.flying != nil || len(k.queue) > 0 {
		return false
	}
	k.place = wanted
	o.wanted = append(o.wanted, key)
	return true
}

// want has a key looked up that was claimed or parked.
func (o *keys) want(key string) {
	if k := o.byKey[key]; k != nil && (k.place == claimed || k.place == parked) {
		k.place = behind
		o.look(key, k)
	}
}

// take hands out keys to look up. Each is answered by found.
func (o *keys) take(n int) (taken []string) {
	for len(o.wanted) > 0 && len(taken) < n {
		key := o.wanted[0]
		o.wanted = o.wanted[1:]
		if k := o.byKey[key]; k != nil && k.place == wanted {
			k.place = claimed
			taken = append(taken, key)
		}
	}
	if len(o.wanted) == 0 {
		o.wanted = nil
	}
	return taken
}

// confirmed ends the flight of a message, and returns the next to publish.
func (o *keys) confirmed(m *outbox.Message) (next *outbox.Message) {
	key := *m.OrderingKey
	k := o.byKey[key]
	if k == nil || k.flying != m {
		return nil
	}
	k.flying = nil
	if len(k.queue) > 0 {
		next = k.queue[0]
		k.queue = k.queue[1:]
		o.queued--
		k.flying = next
	} else if k.place == directly {
		o.drop(key)
	}
	return next
}

// stop has what follows a message in flight go by the table, and returns it. The key waits until landed.
func (o *keys) stop(m *outbox.Message) (queue []*outbox.Message) {
	if k := o.byKey[*m.OrderingKey]; k != nil && k.flying == m {
		k.place = behind
		return o.unqueue(*m.OrderingKey)
	}
	return nil
}

// landed is told that a message is not in memory any more: it was settled, or is left in the table.
func (o *keys) landed(m *outbox.Message) {
	key := *m.OrderingKey
	k := o.byKey[key]
	if k == nil {
		return
	}
	if k.flying == m {
		k.flying = nil
	}
	o.look(key, k)
}

// unqueue takes what is queued out; it is left in the table.
func (o *keys) unqueue(key string) (queue []*outbox.Message) {
	if k := o.byKey[key]; k != nil && len(k.queue) > 0 {
		queue, k.queue = k.queue, nil
		o.queued -= len(queue)
	}
	return queue
}

func (o *keys) unqueueAll() (queue []*outbox.Message) {
	if o.queued == 0 {
		return nil
	}
	for key := range o.byKey {
		queue = append(queue, o.unqueue(key)...)
	}
	slices.SortFunc(queue, func(a, b *outbox.Message) int { return cmp.Compare(a.ID, b.ID) })
	return queue
}

// park notes that the oldest row of a key must not leave yet.
func (o *keys) park(key string, k *keyState) {
	k.place = parked
	if !o.leads {
		o.drop(key)
	}
}

// passed ends a pass over all keys. Parked keys that it has not seen are looked up: their rows may be gone.
func (o *keys) passed(pass int) {
	before := len(o.wanted)
	for key, k := range o.byKey {
		if k.place == parked && k.pass < pass {
			o.want(key)
		}
	}
	slices.Sort(o.wanted[before:])
}

// newTerm forgets what the table holds, as it does not count any more. Leads: the relay owns the slot from now on.
func (o *keys) newTerm(leads bool, seq uint64) {
	o.leads, o.wanted = leads, nil
	o.miss(seq)
	for key, k := range o.byKey {
		switch {
		case k.place == claimed:
		case k.flying != nil || len(k.queue) > 0:
			k.place = behind
		default:
			o.drop(key)
		}
	}
}

package core

import (
	"cmp"
	"slices"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// keys keeps the order of each ordering key: one message in flight, the next in the order of ids. A key is remembered
// while it has a message in memory or rows in the table. A direct key goes from the stream into flight. Any other key
// leaves through the table: sweeps read its rows, and streamed rows stay there. The core's lock guards it.
type keys struct {
	byKey map[string]*keyState
	limit int
	// bytes is the total length of all remembered keys.
	bytes int
	// queued counts the messages in all queues.
	queued int
	// wanted and yielding are keys to look up in the table, oldest request first. They take turns, so that a key with
	// fresh rows waits for one look-up at most, however many other keys fail. See keyState.yields. Calm are wanted keys
	// that had no row in the table before. They have half of a look-up, so they do not wait for all keys of a backlog.
	calm, wanted, yielding []string
	// again are keys whose look-up read nothing: other sessions have locked their rows, or the snapshot was too old.
	// After a wait they join yielding.
	again []string
	// unknownKeysMayWait: keys that are not remembered may have rows in the table, so they go by the table. It ends
	// with a pass over all keys that saw all transactions up to missed, and remembered each key that it did not read.
	unknownKeysMayWait bool
	missed             uint64
	// pass numbers the passes over all keys. complete: the pass misses no row of a key that is not remembered.
	pass     int
	complete bool
}

// keyState is the state of one ordering key.
type keyState struct {
	place place
	// line is the message in flight, and the messages in memory behind it, oldest first.
	line []*outbox.Message
	// left is the number of the newest transaction of which a row was left in the table.
	left uint64
	// pass is the newest pass over all keys that has seen a row of this key.
	pass int
	// yields: the head was rejected or set aside, or had a time. The key's look-ups are listed in keys.yielding until a
	// message of the key has left.
	yields bool
	// rows is how many rows the key had at its look-up, if that read all of them, and none was left since.
	rows int
	// dropping counts its superseded rows that are being deleted.
	dropping int
}

// flies reports whether the message is the first of its line. K may be nil.
func (k *keyState) flies(m *outbox.Message) bool {
	return k != nil && len(k.line) > 0 && k.line[0] == m
}

// pop removes the message in flight, and frees its payload.
func (k *keyState) pop() {
	k.line[0] = nil
	k.line = k.line[1:]
}

// place is how the messages of a key leave; doc.go has the diagram.
type place uint8

const (
	direct   place = iota // no row of the key waits in the table
	draining              // rows wait in the table until the messages in memory are settled
	toLookUp              // listed in keys.wanted, keys.yielding or keys.again
	swept                 // being looked up, or rows of a look-up are in memory
	blocked               // its head must not leave yet
)

// mostKeyBytes bounds the total length of all remembered keys. One key may have 2,684 bytes.
const mostKeyBytes = 16 << 20

// mostQueued bounds the messages that one key may queue in memory.
const mostQueued = 64

func newKeys(limit int) keys {
	return keys{byKey: make(map[string]*keyState), limit: limit, unknownKeysMayWait: true}
}

// passage is the decision about a streamed message with a key.
type passage uint8

const (
	goes passage = iota + 1
	queues
	waits
)

// streamed decides about a message from the stream. Room: it may be queued.
func (ks *keys) streamed(m *outbox.Message, room bool) passage {
	k := ks.byKey[*m.OrderingKey]
	switch {
	case k == nil && !ks.unknownKeysMayWait:
		ks.add(*m.OrderingKey, &keyState{line: []*outbox.Message{m}})
		return goes
	case k != nil && k.place == direct && room && len(k.line) <= mostQueued:
		k.line = append(k.line, m)
		ks.queued++
		return queues
	}
	return waits
}

func (ks *keys) add(key string, k *keyState) {
	ks.byKey[key] = k
	ks.bytes += len(key)
}

func (ks *keys) forget(key string) {
	delete(ks.byKey, key)
	ks.bytes -= len(key)
}

// remember returns the key's state, or nil if there are too many keys. Keys that are not remembered go by the table.
func (ks *keys) remember(key string) *keyState {
	if k := ks.byKey[key]; k != nil {
		return k
	}
	if len(ks.byKey) >= ks.limit || ks.bytes+len(key) > mostKeyBytes {
		return nil
	}
	k := &keyState{place: draining, pass: ks.pass}
	if ks.unknownKeysMayWait {
		k.left = ks.missed
	}
	ks.add(key, k)
	return k
}

// miss records that keys which are not remembered have rows in the table.
func (ks *keys) miss(seq uint64) {
	ks.unknownKeysMayWait, ks.missed = true, max(ks.missed, seq)
	ks.pass++ // the current pass may have read past them
}

// leaveInTable records that a row of the key stays in the table. It reports whether a look-up was requested.
func (ks *keys) leaveInTable(key string, seq uint64) bool {
	before := ks.byKey[key]
	k := ks.remember(key)
	if k == nil {
		ks.miss(seq)
		return false
	}
	calm := before == nil || k.place == direct
	k.left, k.rows = max(k.left, seq), 0
	if k.place == direct {
		k.place = draining
	}
	return ks.look(key, k, calm)
}

// look asks for a look-up of the key, once none of its messages is in memory. Calm: it had no row in the table before.
func (ks *keys) look(key string, k *keyState, calm bool) bool {
	if k.place != draining || len(k.line) > 0 || k.dropping > 0 {
		return false
	}
	k.place = toLookUp
	switch {
	case k.yields:
		ks.yielding = append(ks.yielding, key)
	case calm:
		ks.calm = append(ks.calm, key)
	default:
		ks.wanted = append(ks.wanted, key)
	}
	return true
}

// want asks for another look-up of a key that is being looked up, or of a blocked one.
func (ks *keys) want(key string) {
	if k := ks.byKey[key]; k != nil && (k.place == swept || k.place == blocked) {
		k.place = draining
		ks.look(key, k, false)
	}
}

// lookAgain asks for a look-up of a key whose last look-up has read nothing.
func (ks *keys) lookAgain(key string, k *keyState) {
	if k.place = draining; len(k.line) == 0 {
		k.place = toLookUp
		ks.again = append(ks.again, key)
	}
}

// take returns up to n keys of a list, to look them up. found answers each.
func (ks *keys) take(list *[]string, n int) (taken []string) {
	for len(*list) > 0 && len(taken) < n {
		key := (*list)[0]
		*list = (*list)[1:]
		if k := ks.byKey[key]; k != nil && k.place == toLookUp {
			k.place = swept
			taken = append(taken, key)
		}
	}
	if len(*list) == 0 {
		*list = nil // frees the array
	}
	return taken
}

// yields records that a message of a key cannot leave yet, or that one has left.
func (ks *keys) yields(m *outbox.Message, yields bool) {
	if m.OrderingKey == nil {
		return
	}
	if k := ks.byKey[*m.OrderingKey]; k != nil {
		k.yields = yields
	}
}

// confirmed ends the flight of a message, and returns the next message to publish.
func (ks *keys) confirmed(m *outbox.Message) (next *outbox.Message) {
	key := *m.OrderingKey
	k := ks.byKey[key]
	if !k.flies(m) {
		return nil
	}
	k.pop()
	if len(k.line) > 0 {
		ks.queued--
		return k.line[0]
	}
	if k.place == direct || k.place == swept && k.rows > 0 {
		ks.forget(key)
	} else if k.place == swept {
		k.place = draining // until this message is deleted
	}
	return nil
}

// stop makes the messages behind one in flight go by the table, and returns them. The key waits until the message is
// released.
func (ks *keys) stop(m *outbox.Message) (queue []*outbox.Message) {
	if k := ks.byKey[*m.OrderingKey]; k.flies(m) {
		k.place = draining
		return ks.unqueue(*m.OrderingKey)
	}
	return nil
}

// released records that a message has left the memory: it was settled, or stays in the table.
func (ks *keys) released(m *outbox.Message) {
	key := *m.OrderingKey
	k := ks.byKey[key]
	if k == nil {
		return
	}
	if k.flies(m) {
		k.pop()
	}
	ks.look(key, k, false)
}

// dropped records that a superseded row is gone.
func (ks *keys) dropped(key string) {
	if k := ks.byKey[key]; k != nil && k.dropping > 0 {
		k.dropping--
	}
}

// unqueue empties the queue of a key and returns it; these rows stay in the table.
func (ks *keys) unqueue(key string) (queue []*outbox.Message) {
	if k := ks.byKey[key]; k != nil && len(k.line) > 1 {
		k.line, queue = k.line[:1:1], k.line[1:]
		ks.queued -= len(queue)
	}
	return queue
}

func (ks *keys) unqueueAll() (queue []*outbox.Message) {
	if ks.queued == 0 {
		return nil
	}
	for key := range ks.byKey {
		queue = append(queue, ks.unqueue(key)...)
	}
	slices.SortFunc(queue, func(a, b *outbox.Message) int { return cmp.Compare(a.ID, b.ID) })
	return queue
}

// block records that the head of a key must not leave yet.
func (k *keyState) block() { k.place, k.yields = blocked, true }

// passed ends a pass that has read all keys. Blocked keys that it did not see are looked up, because their rows may be
// gone.
func (ks *keys) passed(pass int) {
	before := len(ks.yielding)
	for key, k := range ks.byKey {
		if k.place == blocked && k.pass < pass {
			ks.want(key)
		}
	}
	slices.Sort(ks.yielding[before:])
	if ks.complete && pass == ks.pass {
		ks.unknownKeysMayWait = false
	}
}

// newTerm forgets what is known of the table.
func (ks *keys) newTerm(seq uint64) {
	ks.calm, ks.wanted, ks.yielding, ks.again = nil, nil, nil, nil
	ks.miss(seq)
	for key, k := range ks.byKey {
		switch {
		case len(k.line) > 0 || k.dropping > 0:
			k.place = draining
		default:
			ks.forget(key)
		}
	}
}

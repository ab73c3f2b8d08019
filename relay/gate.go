package relay

import (
	"slices"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
)

// gate keeps the order of each ordering key: one message in flight, the next ones
// in the order of their ids (docs/architecture.md, invariant 9). A key stands in it for as
// long as it has a message in memory, or rows in the table that must leave before
// those the stream brings. It is pure: values in, values out; it belongs to the
// core and its lock.
//
// A key goes directly (from the stream into flight) or by the table (its rows are
// fetched from there, and streamed ones are left there). It starts by the table
// while the gate is suspicious: after the relay has taken the slot, or when it had
// to forget keys, until a pass over all keys has shown which have rows.
type gate struct {
	keys map[string]*keyState
	// mostKeys bounds them.
	mostKeys int
	// suspicious: a key that is not in keys may have rows in the table.
	suspicious bool
	// overflowed tells that a key was forgotten since the pass began.
	overflowed bool
	// queued counts the messages in all queues.
	queued int
	// wanted are keys to be fetched from the table, in the order they asked.
	wanted []string
	// fetches: keys are fetched at all, as the holder of the slot does. Otherwise a key stands
	// here only for what it has in memory.
	fetches bool
}

// mostQueuedPerKey bounds what one key may hold in memory behind its message in flight.
const mostQueuedPerKey = 64

func newGate(mostKeys int) gate {
	return gate{keys: make(map[string]*keyState), mostKeys: mostKeys, suspicious: true, fetches: true}
}

// streamed says what to do with a row from the stream: publish it now, keep it in
// the key's queue, or leave it in the table.
func (g *gate) streamed(m *outbox.Message, room bool) passage {
	key := *m.OrderingKey
	k := g.keys[key]
	switch {
	case k == nil && !g.suspicious && room:
		g.keys[key] = &keyState{inFlight: m}
		return publishNow
	case k != nil && !k.table && room && len(k.queue) < mostQueuedPerKey:
		k.queue = append(k.queue, m)
		g.queued++
		return queued
	}
	g.left(key, m)
	return left
}

// passage is what the gate does with a message.
type passage uint8

const (
	publishNow passage = iota + 1
	queued
	left
)

// left notes that a row of the key stays in the table for now.
func (g *gate) left(key string, m *outbox.Message) {
	if k := g.remember(key); k != nil {
		k.table, k.dirty = true, true
		k.leave(m)
		k.begun = k.begun && m.ID > k.readTo // else it comes before rows that were read
		g.ask(key, k)
	}
}

// remember returns the key's state, or nil where there is no room for another: the
// gate is suspicious then, and the pass over all keys finds it again.
func (g *gate) remember(key string) *keyState {
	if k := g.keys[key]; k != nil {
		return k
	}
	if len(g.keys) >= g.mostKeys {
		g.suspicious, g.overflowed = true, true
		g.forgetIdle()
		if len(g.keys) >= g.mostKeys {
			return nil
		}
	}
	k := &keyState{}
	g.keys[key] = k
	return k
}

// ask puts a key on the list of those to be fetched, if there is anything to fetch
// and room for it.
func (g *gate) ask(key string, k *keyState) {
	if g.fetches && k.dirty && !k.waiting && !k.asked && len(k.queue) <= mostQueuedPerKey/2 {
		k.asked = true
		g.wanted = append(g.wanted, key)
	}
}

// take hands out keys to fetch, at most n, each with the row to read on from. Newest is the greatest id
// that the relay knows of. Each is answered by fetched or notFetched.
func (g *gate) take(n int, newest int64) []store.Place {
	var places []store.Place
	for len(g.wanted) > 0 && len(places) < n {
		key := g.wanted[0]
		g.wanted = g.wanted[1:]
		if k := g.keys[key]; k != nil && k.asked {
			k.dirty = false
			if !k.begun {
				k.newest = newest
			}
			places = append(places, k.place(key))
		}
	}
	if len(g.wanted) == 0 {
		g.wanted = nil
	}
	return places
}

// place is where the next fetch of the key begins.
func (k *keyState) place(key string) store.Place {
	if k.begun {
		return store.Place{Key: key, After: k.readTo}
	}
	return store.Place{Key: key, After: store.FromTheOldest}
}

// isAt tells whether what was read from a place on still follows what is in memory.
func (g *gate) isAt(p store.Place) bool {
	k := g.keys[p.Key]
	if k == nil {
		k = &keyState{}
	}
	return k.place(p.Key) == p
}

// mayBeSentBack tells whether a row that a fetch has found which reads on may have been sent back from the dead
// letters since the fetch from the oldest row on: that could not see it, and it has an id from before.
func (g *gate) mayBeSentBack(key string, row store.KeyRow) bool {
	k := g.keys[key]
	return k != nil && k.begun && row.Message.ID <= k.newest && row.WrittenBy != k.readAnew && !k.couldRead(row.WrittenBy)
}

// notFetched puts a key back whose fetch failed, or came too late.
func (g *gate) notFetched(key string) {
	if k := g.keys[key]; k != nil && k.asked {
		k.dirty, k.asked = true, false
		g.ask(key, k)
	}
}

// fetch is the answer to one key: the messages that may follow, in order, and
// whether the key has rows beyond them.
type fetch struct {
	// readTo is the id of the last row read, of which there is none where read does not hold.
	read     bool
	readTo   int64
	messages []*outbox.Message
	// waiting: the next row must not leave yet.
	waiting bool
	// more: there are further rows that were not read.
	more bool
	// anewFor is a transaction that may have sent them back from the dead letters, together with others that come
	// before what was read: it is to be read from the oldest on. 0 for none.
	anewFor uint32
	// seen tells whether the fetch could see what a transaction wrote.
	seen func(xid uint32) bool
}

// fetched takes the answer in. The messages are held from now on. It returns the
// message to publish now, if any, and whether the key has to be resumed a little
// later, since rows that the stream has brought are not visible yet.
func (g *gate) fetched(key string, f fetch) (m *outbox.Message, rest bool) {
	k := g.rememberHeld(key)
	wholly := !k.begun
	k.asked, k.waiting, k.begun = false, false, false
	k.queue = append(k.queue, f.messages...)
	g.queued += len(f.messages)
	switch {
	case f.waiting:
		k.waiting, k.dirty = true, true
	case f.anewFor != 0:
		k.dirty, k.readAnew = true, f.anewFor
	case f.more:
		k.dirty = true
		if k.begun = f.read || !wholly; f.read {
			k.readTo = f.readTo
		}
		if wholly {
			k.couldRead = f.seen
		}
	case !wholly:
		k.dirty = true // a look from the oldest on tells whether that is all
	case !k.sawLeft(f.seen):
		k.waiting, k.dirty = true, true // rests: the core has it fetched again a little later
		rest = true
	case !k.dirty:
		// While suspicious there may be rows that no fetch could see: of transactions
		// that committed before the stream started and are not visible yet.
		k.table, k.leftXID, k.leftID, k.backXID = g.suspicious, 0, 0, 0
	}
	return g.next(key, k), rest
}

// claimed takes rows that a claim brought, in their order: the oldest of the key in the
// table, and what follows it. It returns the message to publish now, or nil where one of the
// key is in flight. What is queued and comes after them (they were sent back from the dead letters) is
// returned, to be left in the table: others may come in between.
func (g *gate) claimed(key string, run []*outbox.Message) (m *outbox.Message, behind []*outbox.Message) {
	k := g.rememberHeld(key)
	if len(run) > 0 { // else it ended before its first
		behind = g.giveBackAfter(k, run[0].ID)
	}
	k.table, k.dirty, k.waiting, k.begun = true, true, false, false
	k.queue = append(k.queue, run...)
	g.queued += len(run)
	return g.next(key, k), behind
}

// giveBackAfter takes the rows that come after an id from the key's queue, to be left in the table.
func (g *gate) giveBackAfter(k *keyState, id int64) (behind []*outbox.Message) {
	if at := slices.IndexFunc(k.queue, func(q *outbox.Message) bool { return q.ID > id }); at >= 0 {
		behind = k.queue[at:]
		k.queue = slices.Clip(k.queue[:at])
		g.queued -= len(behind)
	}
	k.giveBack(behind...)
	return behind
}

// rememberHeld is remember for a key with messages that are held: beyond the bound for the
// moment, where it has to be.
func (g *gate) rememberHeld(key string) *keyState {
	k := g.remember(key)
	if k == nil {
		k = &keyState{table: true}
		g.keys[key] = k
	}
	return k
}

// holds tells whether messages of the key are in flight or queued.
func (g *gate) holds(key string) bool {
	k := g.keys[key]
	return k != nil && (k.inFlight != nil || len(k.queue) > 0)
}

// waits tells whether the key's next row in the table is for a claim to bring.
func (g *gate) waits(key string) bool {
	k := g.keys[key]
	return k != nil && k.waiting
}

// next moves the key on where nothing of it is in flight, and forgets a key that
// has nothing left anywhere.
func (g *gate) next(key string, k *keyState) *outbox.Message {
	var m *outbox.Message
	if k.inFlight == nil && len(k.queue) > 0 {
		m = k.queue[0]
		k.queue = k.queue[1:]
		g.queued--
		k.inFlight = m
	}
	if k.inFlight == nil && (!g.fetches || (!k.dirty && !k.waiting && !k.asked)) {
		delete(g.keys, key)
		return nil
	}
	g.ask(key, k)
	return m
}

// done ends the flight of a message whose key goes on. It returns the next to publish.
func (g *gate) done(m *outbox.Message) *outbox.Message {
	key := *m.OrderingKey
	k := g.keys[key]
	if k == nil || k.inFlight != m {
		return nil
	}
	k.inFlight = nil
	if k.waiting && len(k.queue) == 0 {
		// A fetch may have taken this very row, in the table under its lease, for one
		// that must not leave yet. Another look tells.
		k.waiting, k.dirty, k.begun = false, true, false
	}
	return g.next(key, k)
}

// stop ends the flight of a message that stays in the table. What is queued behind
// it is returned, to be left there too. With waiting, a claim brings the message
// again when due; otherwise the key is fetched again.
func (g *gate) stop(m *outbox.Message, waiting bool) (behind []*outbox.Message) {
	key := *m.OrderingKey
	k := g.keys[key]
	if k == nil || k.inFlight != m {
		return nil
	}
	behind = k.queue
	g.queued -= len(behind)
	k.giveBack(append([]*outbox.Message{m}, behind...)...)
	k.inFlight, k.queue = nil, nil
	k.table, k.dirty, k.waiting, k.begun = true, true, waiting, false
	g.next(key, k)
	return behind
}

// wait notes that the stream has brought a row of the key that must not leave yet.
// Rows of the key that were left before are still fetched: they come first. Those that are
// queued and come after it (it was sent back from the dead letters, with its old id) are
// returned, to be left in the table and to follow it from there.
func (g *gate) wait(m *outbox.Message) (behind []*outbox.Message) {
	key := *m.OrderingKey
	k := g.remember(key)
	if k == nil {
		return nil
	}
	if !k.table {
		k.waiting = true
	}
	k.begun = false
	behind = g.giveBackAfter(k, m.ID)
	g.left(key, m)
	return behind
}

// found notes that a pass over the keys saw rows of this one in the table, the
// oldest of them ready to leave or not.
func (g *gate) found(key string, ready bool) {
	k := g.remember(key)
	if k == nil {
		return
	}
	if k.inFlight != nil || len(k.queue) > 0 {
		k.dirty = k.table // what the pass saw may be in memory; what follows may not
		k.begun = k.begun && ready
		return
	}
	k.table, k.dirty, k.begun = true, true, false
	k.waiting = !ready
	g.ask(key, k)
}

// resume has a key fetched again that waited: its oldest row may have gone without
// the relay's doing.
func (g *gate) resume(key string) {
	if k := g.keys[key]; k != nil {
		k.waiting, k.dirty, k.begun = false, true, false
		g.ask(key, k)
	}
}

// unqueue empties all queues and forgets what the table holds: for the relay that
// lost the slot or stops. Only what is in flight stays. Fetches: it holds the slot from now on.
func (g *gate) unqueue(fetches bool) (behind []*outbox.Message) {
	for _, k := range g.keys {
		behind = append(behind, k.queue...)
		k.queue = nil
		k.asked, k.begun = false, false
		k.table, k.dirty, k.waiting = true, true, false
		k.leftXID, k.leftID, k.backXID = 0, 0, 0 // of a server that may be another now; the pass over all keys waits for more
	}
	g.queued, g.wanted, g.fetches = 0, nil, fetches
	g.suspicious, g.overflowed = true, true
	g.forgetIdle()
	return behind
}

// forgetIdle drops the keys that are there only for what they have in the table.
func (g *gate) forgetIdle() {
	for key, k := range g.keys {
		if k.inFlight == nil && len(k.queue) == 0 && !k.asked {
			delete(g.keys, key)
		}
	}
}

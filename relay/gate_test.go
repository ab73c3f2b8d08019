package relay

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
)

// story drives a gate with one key through what happens to it, and reads like it.
type story struct {
	*testing.T
	gate gate
	key  string
}

func newStory(t *testing.T) *story {
	s := &story{T: t, gate: newGate(100), key: "k"}
	s.gate.suspicious = false // a pass has shown which keys have rows
	return s
}

func (s *story) row(id int64) *outbox.Message {
	return &outbox.Message{ID: id, OrderingKey: &s.key, XID: uint32(id)}
}

func (s *story) streams(m *outbox.Message, want passage) {
	s.Helper()
	if got := s.gate.streamed(m, true); got != want {
		s.Fatalf("row %d from the stream: %d, want %d", m.ID, got, want)
	}
}

func (s *story) publishes(got *outbox.Message, want int64) {
	s.Helper()
	switch {
	case got == nil && want != 0:
		s.Fatalf("publishes nothing, want row %d", want)
	case got != nil && got.ID != want:
		s.Fatalf("publishes row %d, want %d", got.ID, want)
	}
}

func (s *story) fetches(want bool) {
	s.Helper()
	if keys := s.gate.take(10, 0); (len(keys) == 1) != want {
		s.Fatalf("fetches %+v, want the key: %v", keys, want)
	}
}

func (s *story) fetchesAfter(id int64) store.Place {
	s.Helper()
	places := s.gate.take(10, 0)
	if want := (store.Place{Key: s.key, After: id}); len(places) != 1 || places[0] != want {
		s.Fatalf("fetches %+v, want %+v", places, want)
	}
	return places[0]
}

func (s *story) fetched(f fetch) *outbox.Message {
	if f.seen == nil {
		f.seen = func(uint32) bool { return true }
	}
	m, _ := s.gate.fetched(s.key, f)
	return m
}

func (s *story) claims(run ...*outbox.Message) *outbox.Message {
	m, _ := s.gate.claimed(s.key, run)
	return m
}

func (s *story) forgotten() {
	s.Helper()
	if len(s.gate.keys) != 0 {
		s.Fatalf("remembers %+v", s.gate.keys[s.key])
	}
}

const nothing = 0

func TestRowsOfAKeyFollowOneAnother(t *testing.T) {
	s := newStory(t)
	first, second := s.row(1), s.row(2)
	s.streams(first, publishNow)
	s.streams(second, queued)
	s.publishes(s.gate.done(first), 2)
	s.publishes(s.gate.done(second), nothing)
	s.forgotten()
}

func TestARefusedRowKeepsItsFollowersInTheTable(t *testing.T) {
	s := newStory(t)
	first, second := s.row(1), s.row(2)
	s.streams(first, publishNow)
	s.streams(second, queued)
	if behind := s.gate.stop(first, true); len(behind) != 1 || behind[0] != second {
		t.Fatalf("behind it %v, want row 2", behind)
	}
	s.streams(s.row(3), left)
	s.fetches(false) // its turn comes when the refused row is due

	retried := s.row(1)
	s.publishes(s.claims(retried), 1)
	s.publishes(s.gate.done(retried), nothing)
	s.fetches(true)
	again := s.row(2)
	s.publishes(s.fetched(fetch{messages: []*outbox.Message{again, s.row(3)}}), 2)
	s.streams(s.row(4), queued) // the table is drained: the key goes directly again
	s.publishes(s.gate.done(again), 3)
}

// What was read is not read again, but for a last look from the oldest row on.
func TestFetchesOfAKeyReadOn(t *testing.T) {
	s := newStory(t)
	s.gate.left(s.key, s.row(1))
	s.fetchesAfter(store.FromTheOldest)
	first, second, third := s.row(1), s.row(2), s.row(3)
	s.publishes(s.fetched(fetch{messages: []*outbox.Message{first, second}, read: true, readTo: 2, more: true}), 1)
	s.fetchesAfter(2)
	s.publishes(s.fetched(fetch{messages: []*outbox.Message{third}, read: true, readTo: 3}), nothing)
	s.fetchesAfter(store.FromTheOldest)
	s.publishes(s.fetched(fetch{}), nothing)
	s.publishes(s.gate.done(first), 2)
	s.publishes(s.gate.done(second), 3)
	s.streams(s.row(4), queued)
}

func TestAFetchThatReadsOnIsDroppedWhereTheKeyWasStopped(t *testing.T) {
	for name, change := range map[string]func(s *story, first *outbox.Message){
		"the row before it was refused":    func(s *story, first *outbox.Message) { s.gate.stop(first, true) },
		"the row before it was given back": func(s *story, first *outbox.Message) { s.gate.stop(first, false) },
		"an older row came":                func(s *story, _ *outbox.Message) { s.gate.left(s.key, s.row(1)) },
		"a row came that has to wait":      func(s *story, _ *outbox.Message) { s.gate.wait(s.row(9)) },
		"a row was claimed":                func(s *story, _ *outbox.Message) { s.claims(s.row(1)) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t)
			first := s.row(2)
			s.gate.left(s.key, first)
			s.fetchesAfter(store.FromTheOldest)
			s.publishes(s.fetched(fetch{messages: []*outbox.Message{first}, read: true, readTo: 2, more: true}), 2)
			place := s.fetchesAfter(2)
			change(s, first)
			if s.gate.isAt(place) {
				t.Error("what was read follows the key still")
			}
		})
	}
}

func TestAnOutageSendsTheKeyThroughTheTable(t *testing.T) {
	s := newStory(t)
	first := s.row(1)
	s.streams(first, publishNow)
	s.gate.stop(first, false)
	s.fetches(true)
	again := s.row(1)
	s.publishes(s.fetched(fetch{messages: []*outbox.Message{again}}), 1)
	s.publishes(s.gate.done(again), nothing)
	s.forgotten()
}

func TestARowThatIsNotVisibleYetIsNotOvertaken(t *testing.T) {
	s := newStory(t)
	unseen := s.row(7)
	unseen.XID = 7
	s.gate.left(s.key, unseen)
	s.fetches(true)
	s.publishes(s.fetched(fetch{seen: func(xid uint32) bool { return xid != 7 }}), nothing)
	s.streams(s.row(8), left)
	s.gate.resume(s.key)
	s.fetches(true)
	s.publishes(s.fetched(fetch{messages: []*outbox.Message{s.row(7), s.row(8)}}), 7)
}

func TestASuspiciousGateLooksIntoTheTableFirst(t *testing.T) {
	s := newStory(t)
	s.gate.suspicious = true
	s.streams(s.row(5), left)
	s.fetches(true)
	older := s.row(3)
	s.publishes(s.fetched(fetch{messages: []*outbox.Message{older, s.row(5)}}), 3)
	s.streams(s.row(6), left) // a row that no fetch could see may come before it
}

func TestAScheduledRowHoldsUpItsKey(t *testing.T) {
	s := newStory(t)
	first := s.row(1)
	s.streams(first, publishNow)
	if behind := s.gate.wait(s.row(2)); behind != nil {
		t.Errorf("left %v", behind)
	}
	s.streams(s.row(3), left)
	s.publishes(s.gate.done(first), nothing)
	s.fetches(true)
	s.publishes(s.fetched(fetch{waiting: true}), nothing)
	s.fetches(false)
}

// A dead letter that was sent back has its old id, and comes before what is queued.
func TestARowThatComesBackGoesBeforeTheQueue(t *testing.T) {
	s := newStory(t)
	first, second, third, back := s.row(4), s.row(5), s.row(6), s.row(2)
	s.streams(first, publishNow)
	s.streams(second, queued)
	s.streams(third, queued)
	if behind := s.gate.wait(back); len(behind) != 2 || behind[0] != second || behind[1] != third || s.gate.queued != 0 {
		t.Errorf("left %v, %d queued", behind, s.gate.queued)
	}
	s.publishes(s.claims(back), nothing) // row 4 is in flight
	s.publishes(s.gate.done(first), 2)
	s.publishes(s.gate.done(back), nothing)
	s.fetches(true)
	s.publishes(s.fetched(fetch{messages: []*outbox.Message{second, third}}), 5)
	s.publishes(s.gate.done(second), 6)
	s.publishes(s.gate.done(third), nothing)
	s.forgotten()
}

// What comes back from the dead letters is the head of a run that goes before the queue, and so does what else came
// back with it.
func TestARunGoesBeforeTheQueue(t *testing.T) {
	s := newStory(t)
	first, second, queue := s.row(1), s.row(2), s.row(9)
	s.streams(first, publishNow)
	s.streams(second, queued)
	s.streams(queue, queued)
	m, behind := s.gate.claimed(s.key, []*outbox.Message{s.row(3), s.row(4)})
	s.publishes(m, nothing)
	if len(behind) != 1 || behind[0] != queue {
		t.Errorf("left %v", behind)
	}
	for _, want := range []int64{2, 3, 4} {
		s.publishes(s.gate.done(s.gate.keys[s.key].inFlight), want)
	}
	s.fetches(true)
	s.publishes(s.gate.done(s.gate.keys[s.key].inFlight), nothing)
	s.publishes(s.fetched(fetch{messages: []*outbox.Message{s.row(5), queue}}), 5)
	if s.gate.queued != 1 {
		t.Errorf("%d are queued", s.gate.queued)
	}
}

// Who does not hold the slot fetches no keys, and remembers none.
func TestAKeyThatIsNotFetchedIsForgotten(t *testing.T) {
	s := newStory(t)
	s.gate.fetches = false
	head, next := s.row(1), s.row(2)
	s.publishes(s.claims(head, next), 1)
	s.publishes(s.gate.done(head), 2)
	s.publishes(s.gate.done(next), nothing)
	s.forgotten()
	s.publishes(s.claims(head, next), 1)
	if behind := s.gate.stop(head, true); len(behind) != 1 {
		t.Errorf("behind it %v", behind)
	}
	s.forgotten()
	s.fetches(false)
}

func TestTooManyKeysMakeTheGateSuspicious(t *testing.T) {
	g := newGate(3)
	g.suspicious = false
	for _, key := range []string{"a", "b", "c", "d"} {
		g.wait(&outbox.Message{OrderingKey: &key})
	}
	if !g.suspicious || !g.overflowed {
		t.Error("a forgotten key could be overtaken")
	}
	if len(g.keys) > 3 {
		t.Errorf("%d keys remembered", len(g.keys))
	}
}

// What is given back for a row that was sent back from the dead letters may be visible later than that.
func TestWhatIsGivenBackIsWaitedFor(t *testing.T) {
	s := newStory(t)
	s.streams(s.row(9), publishNow)
	s.streams(s.row(10), queued)
	s.streams(s.row(11), queued)
	first := s.row(5)
	if behind := s.gate.wait(first); len(behind) != 2 {
		t.Fatalf("gave back %v", behind)
	}
	s.publishes(s.claims(first), nothing)
	s.publishes(s.gate.done(s.gate.keys[s.key].inFlight), 5)
	s.fetches(true)
	s.publishes(s.fetched(fetch{seen: func(xid uint32) bool { return xid == first.XID }}), nothing)
	s.publishes(s.gate.done(s.gate.keys[s.key].inFlight), nothing)
	if got := s.gate.streamed(s.row(12), true); got == publishNow {
		t.Error("a later row went before rows that nobody can see yet")
	}
}

// A pass over the keys may find a row that was sent back before those in memory, of which the stream brings no word yet.
func TestAPassFindsWhatComesBeforeWhatWasRead(t *testing.T) {
	s := newStory(t)
	s.gate.left(s.key, s.row(4))
	s.fetches(true)
	s.publishes(s.fetched(fetch{messages: []*outbox.Message{s.row(4), s.row(5)}, read: true, readTo: 5, more: true}), 4)
	s.gate.found(s.key, true) // row 4 itself
	s.fetchesAfter(5)
	s.gate.notFetched(s.key)
	s.gate.found(s.key, false)
	s.fetchesAfter(store.FromTheOldest)
}

// After a failover transactions have other numbers: what was left before is no longer waited for.
func TestATermWaitsForNoTransactionOfTheOneBefore(t *testing.T) {
	s := newStory(t)
	s.streams(s.row(4), publishNow)
	s.gate.wait(s.row(7))
	s.gate.unqueue(true)
	s.gate.suspicious = false
	s.publishes(s.gate.done(s.gate.keys[s.key].inFlight), 0)
	s.fetches(true)
	s.publishes(s.fetched(fetch{seen: func(uint32) bool { return false }}), 0)
	s.forgotten()
}

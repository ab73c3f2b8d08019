package relay

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
)

func TestASweptRowIsRememberedUntilTheStreamHasPassedIt(t *testing.T) {
	r, ref := newRegistry(10), outbox.Ref{ID: 1}
	r.hold(ref, 100)
	r.settle(ref, deleted)
	r.streamPassed(99)
	if r.standing(ref) != deleted {
		t.Error("forgotten though the stream may still bring it")
	}
	r.streamPassed(100)
	if r.standing(ref) != unknown {
		t.Error("remembered though nothing can bring it")
	}
}

func TestAStreamedRowIsForgottenOnceSettled(t *testing.T) {
	r, ref := newRegistry(10), outbox.Ref{ID: 1}
	r.hold(ref, 0)
	r.settle(ref, deleted)
	if r.standing(ref) != unknown {
		t.Error("remembered though nothing can bring it")
	}
}

func TestARowSettledDuringASweepIsRememberedUntilTheSweepEnds(t *testing.T) {
	r, ref := newRegistry(10), outbox.Ref{ID: 1}
	r.hold(ref, 0)
	r.sweepBegan()
	r.settle(ref, deleted)
	if r.standing(ref) != deleted {
		t.Error("forgotten though the query may return it")
	}
	r.sweepEnded()
	if r.standing(ref) != unknown {
		t.Error("remembered though nothing can bring it")
	}
}

func TestARetriedRowThatIsClaimedAgainIsNotForgottenOnTheWay(t *testing.T) {
	r, ref := newRegistry(10), outbox.Ref{ID: 1}
	r.hold(ref, 100)
	r.settle(ref, kept)
	r.hold(ref, 120) // a claim
	r.streamPassed(130)
	if r.standing(ref) != held {
		t.Error("forgotten while in flight")
	}
	r.settle(ref, deleted)
	if r.standing(ref) != unknown {
		t.Error("remembered though nothing can bring it")
	}
}

func TestTheSameIDWithAnotherMessageIDIsAnotherRow(t *testing.T) {
	r := newRegistry(10)
	r.hold(outbox.Ref{ID: 1, MessageID: outbox.UUID{1}}, 0)
	if r.standing(outbox.Ref{ID: 1, MessageID: outbox.UUID{2}}) != unknown {
		t.Error("TRUNCATE … RESTART IDENTITY hands ids out again")
	}
}

func TestTooManySettledRowsGiveWayToAFloor(t *testing.T) {
	r := newRegistry(3)
	for id := range int64(3) {
		ref := outbox.Ref{ID: id}
		r.hold(ref, uint64(100+id))
		r.settle(ref, deleted)
	}
	if floor := r.overflow(); floor != 102 {
		t.Errorf("floor %d, want the newest position forgotten", floor)
	}
	if len(r.rows) != 0 {
		t.Errorf("%d rows remembered", len(r.rows))
	}
}

// A server that has replaced another may be far behind it with its WAL.
func TestARowSweptFromAServerThatIsBehindIsRememberedUntilItsStreamHasPassedIt(t *testing.T) {
	r := newRegistry(10)
	before, ref := outbox.Ref{ID: 1}, outbox.Ref{ID: 2}
	r.hold(before, 1100)
	r.settle(before, deleted)
	r.streamPassed(1000)
	r.streamStarts(500, 510)
	r.hold(ref, 600)
	r.settle(ref, deleted)
	r.streamPassed(520)
	if r.standing(before) != unknown {
		t.Error("a row of the server before is remembered though nothing can bring it")
	}
	if r.standing(ref) != deleted {
		t.Error("forgotten though the stream may still bring it")
	}
	r.streamPassed(600)
	if len(r.rows) > 0 {
		t.Errorf("remembered though nothing can bring it: %v", r.rows)
	}
}

// What is sent back from the dead letters is settled once more, where it was seen again.
func TestARowThatIsSettledAgainIsRememberedUntilTheStreamHasPassedWhereItWasSeenLast(t *testing.T) {
	r := newRegistry(10)
	ref := outbox.Ref{ID: 2}
	r.hold(ref, 1000)
	r.settle(ref, dead)
	r.hold(ref, 1025)
	r.settle(ref, deleted)
	r.streamPassed(1005)
	if r.standing(ref) != deleted {
		t.Error("forgotten though the stream is still to bring what sent it back")
	}
	r.streamPassed(1025)
	if len(r.rows) > 0 {
		t.Errorf("remembered though nothing can bring it: %v", r.rows)
	}
}

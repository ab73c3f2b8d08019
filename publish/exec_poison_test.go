package publish

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// settle publishes messages until each is confirmed or rejected, and sends the others again, as the relay would. It
// returns the last results.
func (r *running) settle(t *testing.T, messages ...*outbox.Message) map[int64]outbox.Result {
	t.Helper()
	settled := make(map[int64]outbox.Result)
	for round := 0; len(messages) > 0; round++ {
		if round == 50 {
			t.Fatalf("%d messages are not settled in %d rounds", len(messages), round)
		}
		r.awaitPhase(t, Ready)
		r.publish(messages...)
		var again []*outbox.Message
		for _, result := range r.awaitResults(t, messages...) {
			switch result.Outcome {
			case outbox.NotSent, outbox.Unknown:
				m := *result.Message
				m.PossibleDuplicate = m.PossibleDuplicate || result.MayHaveArrived()
				again = append(again, &m)
			default:
				settled[result.Message.ID] = result
			}
		}
		messages = again
	}
	return settled
}

// Such a message makes every handler end or hang. All others are confirmed, whether the handler answers them one at a
// time or together.
func TestExecRejectsAMessageThatBreaksEveryHandler(t *testing.T) {
	for _, do := range []string{"crash", "sleep"} {
		for _, others := range []string{`{}`, `{"do":"batch"}`} {
			t.Run(do+" among "+others, func(t *testing.T) {
				if do == "sleep" {
					services.Thorough(t, "a crash has the same consequences, and is faster")
				}
				p := newExec(t, filepath.Join(t.TempDir(), "arrived"), 2*time.Second)
				p.startTime = 0 // for less waiting
				r := start(t, p)
				var k maker
				var messages []*outbox.Message
				for range 20 {
					messages = append(messages, k.make("x", "k", others))
				}
				poison := k.make("x", "k", `{"do":"`+do+`"}`)
				messages = append(append(messages[:5:5], poison), messages[5:]...)
				for range 2 { // the second attempt is rejected too
					settled := r.settle(t, messages...)
					for id, result := range settled {
						if id != poison.ID && result.Outcome != outbox.Confirmed {
							t.Errorf("message %d: %v (%s: %s)", id, result.Outcome, result.Reason, result.Detail)
						}
					}
					got := settled[poison.ID]
					if got.Outcome != outbox.Rejected || got.Reason != outbox.ReasonHandlerRejected || !got.MayHaveArrived() || !strings.Contains(got.Detail, " handlers ended when this message was sent alone, the last one: the handler ") {
						t.Errorf("the poison: %+v", got)
					}
					messages = []*outbox.Message{k.make("x", "k", `{}`), poison}
					again := *poison
					messages[1] = &again
				}
			})
		}
	}
}

func TestExecChargesNobodyWhileNoHandlerAnswers(t *testing.T) {
	var k maker
	m := k.make("x", "k", `{}`)
	s := newSuspects()
	end := func(answered, wantCulprit bool) {
		t.Helper()
		if answered {
			s.handlerWorked()
		}
		if _, culprit := s.blame(m, sessionEnd{alone: s.of(m).mustBeAlone(), answered: answered}); culprit != wantCulprit {
			t.Fatalf("culprit: %v, %+v", culprit, s)
		}
	}
	for range 10 {
		end(false, false)
	}
	end(true, false) // the second one alone
	end(false, true)
	for range 10 {
		end(false, false) // nobody answered since
	}
	end(true, true)
	s.clear(m)
	for range endsTogether + endsAlone - 1 {
		end(true, false)
	}
	end(true, true)
}

// The first handler that ends at it answered all others, as in a drain of a table where it is the last row.
func TestExecRejectsAMessageAfterWhichNoOtherComes(t *testing.T) {
	r := start(t, newExec(t, filepath.Join(t.TempDir(), "arrived"), time.Hour))
	var k maker
	good, poison := k.make("x", "k", `{}`), k.make("x", "k", `{"do":"crash"}`)
	if settled := r.settle(t, good, poison); settled[good.ID].Outcome != outbox.Confirmed || settled[poison.ID].Outcome != outbox.Rejected {
		t.Errorf("got %+v", settled)
	}
}

func TestExecHandlersMayTakeLongerToStartThanToAnswer(t *testing.T) {
	p := newExec(t, filepath.Join(t.TempDir(), "arrived"), time.Nanosecond)
	p.startTime = time.Hour
	r := start(t, p)
	r.awaitPhase(t, Ready)
	var k maker
	m := k.make("x", "k", `{}`)
	r.publish(m)
	allAre(t, r.awaitResults(t, m), outbox.Confirmed)
}

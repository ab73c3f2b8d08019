package handler

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// settle publishes messages until each is confirmed or rejected, and sends the others again, as the relay would. It
// returns the last results.
func settle(t *testing.T, r *publishtest.Running, messages ...*outbox.Message) map[int64]outbox.Result {
	t.Helper()
	settled := make(map[int64]outbox.Result)
	for round := 0; len(messages) > 0; round++ {
		if round == 50 {
			t.Fatalf("%d messages are not settled in %d rounds", len(messages), round)
		}
		r.AwaitPhase(t, publish.Ready)
		r.PublishAll(messages...)
		var again []*outbox.Message
		for _, result := range r.AwaitResults(t, messages...) {
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
func TestRejectsAMessageThatBreaksEveryHandler(t *testing.T) {
	for _, do := range []string{"crash", "sleep"} {
		for _, others := range []string{`{}`, `{"do":"batch"}`} {
			t.Run(do+" among "+others, func(t *testing.T) {
				timeout := time.Hour
				if do == "sleep" {
					timeout = await.Scaled(2 * time.Second)
					services.Thorough(t, "a crash has the same consequences, and is faster")
				}
				p := newHandler(t, filepath.Join(t.TempDir(), "arrived"), timeout)
				p.startTime = 0 // for less waiting
				r := publishtest.Start(t, p)
				var k publishtest.Maker
				var messages []*outbox.Message
				for range 20 {
					messages = append(messages, k.Make("x", "k", others))
				}
				poison := k.Make("x", "k", `{"do":"`+do+`"}`)
				messages = append(append(messages[:5:5], poison), messages[5:]...)
				for range 2 { // the second attempt is rejected too
					settled := settle(t, r, messages...)
					for id, result := range settled {
						if id != poison.ID && result.Outcome != outbox.Confirmed {
							t.Errorf("message %d: %v (%s: %s)", id, result.Outcome, result.Reason, result.Detail)
						}
					}
					got := settled[poison.ID]
					if got.Outcome != outbox.Rejected || got.Reason != outbox.ReasonHandlerRejected || !got.MayHaveArrived() || !strings.Contains(got.Detail, " handlers ended when this message was sent alone, the last one: the handler ") {
						t.Errorf("the poison: %+v", got)
					}
					messages = []*outbox.Message{k.Make("x", "k", `{}`), poison}
					again := *poison
					messages[1] = &again
				}
			})
		}
	}
}

// The first handler that ends at it answered all others, as in a drain of a table where it is the last row.
func TestRejectsAMessageAfterWhichNoOtherComes(t *testing.T) {
	r := handling(t)
	var k publishtest.Maker
	good, poison := k.Make("x", "k", `{}`), k.Make("x", "k", `{"do":"crash"}`)
	if settled := settle(t, r, good, poison); settled[good.ID].Outcome != outbox.Confirmed || settled[poison.ID].Outcome != outbox.Rejected {
		t.Errorf("got %+v", settled)
	}
}

func TestHandlersMayTakeLongerToStartThanToAnswer(t *testing.T) {
	p := newHandler(t, filepath.Join(t.TempDir(), "arrived"), time.Nanosecond)
	p.startTime = time.Hour
	r := publishtest.Start(t, p)
	r.AwaitPhase(t, publish.Ready)
	var k publishtest.Maker
	m := k.Make("x", "k", `{}`)
	publishtest.AllAre(t, r.Answers(t, m), outbox.Confirmed)
}

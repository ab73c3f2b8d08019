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
					settled, _ := r.Settle(t, messages, nil, nil)
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
	if settled, _ := r.Settle(t, []*outbox.Message{good, poison}, nil, nil); settled[good.ID].Outcome != outbox.Confirmed || settled[poison.ID].Outcome != outbox.Rejected {
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

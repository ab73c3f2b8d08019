package amqp

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// sendAllowed sends as many messages as the throttle allows, and returns their epochs.
func sendAllowed(th *throttle) []int {
	sent := make([]int, th.allowed(0))
	for i := range sent {
		sent[i] = th.sent()
	}
	return sent
}

func (t *throttle) answeredAll(sent []int) {
	for _, epoch := range sent {
		t.answered(epoch)
	}
}

func pauseIsOver(th *throttle) bool { return th.allowed(0) > 0 }

// One write then sends hundreds of messages.
func TestThrottleContinuesWhenHalfIsAnswered(t *testing.T) {
	th := newThrottle(newSendWindow(100, 2000))
	sent := sendAllowed(th)
	if len(sent) != smallestWindow || th.allowed(0) != 0 {
		t.Fatalf("%d messages were allowed, and then %d", len(sent), th.allowed(0))
	}
	th.answeredAll(sent[:smallestWindow/2-1])
	if pauseIsOver(th) || th.allowed(0) != 0 {
		t.Error("the pause was over before half of the messages had their answer")
	}
	th.answered(sent[smallestWindow/2-1])
	if !pauseIsOver(th) || th.allowed(0) != smallestWindow/2 {
		t.Errorf("half of the messages had their answer, and %d were allowed", th.allowed(0))
	}
}

// The round-trip time must not bound the throughput.
func TestThrottleAllowsMoreForADistantBroker(t *testing.T) {
	for _, test := range []struct {
		confirms []time.Duration
		allowed  int
	}{
		{nil, 400},
		{[]time.Duration{time.Millisecond}, 400},
		{[]time.Duration{20 * time.Millisecond}, 1200},
		{[]time.Duration{80 * time.Millisecond}, 2000},
		{[]time.Duration{80 * time.Millisecond, 10 * time.Millisecond, time.Second}, 600}, // the fastest shows the distance
	} {
		th := newThrottle(newSendWindow(100, 2000))
		for _, took := range test.confirms {
			th.confirmed(took)
		}
		if allowed := th.allowed(0); allowed != test.allowed {
			t.Errorf("with confirms after %v, %d messages are allowed, want %d", test.confirms, allowed, test.allowed)
		}
	}
}

// Their late answers change nothing.
func TestThrottleIgnoresStuckMessages(t *testing.T) {
	th := newThrottle(newSendWindow(100, 2000))
	late := sendAllowed(th)
	th.notAnswered(th.answers)
	sent := sendAllowed(th)
	if len(sent) != smallestWindow {
		t.Fatalf("%d messages were allowed", len(sent))
	}
	th.answeredAll(late)
	if th.allowed(0) != 0 {
		t.Error("late answers allowed more messages")
	}
	th.answeredAll(sent)
	if th.allowed(0) != smallestWindow {
		t.Errorf("all have their answer, and %d are allowed", th.allowed(0))
	}
}

// The slow queue gives few answers, and all waiting messages are its own.
func TestThrottleDoesNotWaitForASlowQueue(t *testing.T) {
	th := newThrottle(newSendWindow(100, 2000))
	sent := sendAllowed(th)
	if th.allowed(0) != 0 {
		t.Fatal("no pause")
	}
	before := th.answers
	th.answeredAll(sent[:fewAnswers])
	th.notAnswered(before)
	if th.allowed(0) != 0 {
		t.Error("the pause ended although the broker answers")
	}
	before = th.answers
	th.answeredAll(sent[fewAnswers : 2*fewAnswers-1])
	th.notAnswered(before)
	if th.allowed(0) != smallestWindow {
		t.Errorf("almost nothing was answered, and %d messages are allowed", th.allowed(0))
	}
}

// In any order of events, a pause ends when all messages are answered.
func TestThrottlePausesEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		th := newThrottle(newSendWindow(100, 2000))
		var unanswered []int
		paused := false
		t.Repeat(map[string]func(*rapid.T){
			"send": func(t *rapid.T) {
				allowed := th.allowed(0)
				if paused = allowed == 0; paused {
					return
				}
				for range rapid.IntRange(1, allowed).Draw(t, "messages") {
					unanswered = append(unanswered, th.sent())
				}
			},
			"answer": func(t *rapid.T) {
				first := rapid.IntRange(0, len(unanswered)).Draw(t, "first")
				end := rapid.IntRange(first, len(unanswered)).Draw(t, "end")
				th.answeredAll(unanswered[first:end])
				unanswered = slices.Delete(unanswered, first, end)
			},
			"confirm": func(t *rapid.T) {
				th.confirmed(time.Duration(rapid.IntRange(0, 50).Draw(t, "milliseconds")) * time.Millisecond)
			},
			"stuck": func(*rapid.T) { th.notAnswered(th.answers) },
			"": func(t *rapid.T) {
				counted := 0
				for _, epoch := range unanswered {
					if epoch == th.epoch {
						counted++
					}
				}
				if th.waiting != counted {
					t.Fatalf("%d messages count, and should be %d", th.waiting, counted)
				}
			},
		})
		pauseIsOver(th)
		hadWaited := th.waiting > 0
		th.answeredAll(unanswered)
		if paused && hadWaited && th.paused && !pauseIsOver(th) {
			t.Fatal("all have their answer, and the sender is not notified")
		}
		if th.allowed(0) == 0 {
			t.Fatal("all have their answer, and none is allowed")
		}
	})
}

// Such a broker gets as many messages as may be in flight.
func TestMessagesAreSentWhileTheBrokerAnswersLate(t *testing.T) {
	t.Parallel()
	_, q, proxy, u := behindProxy(t)
	r := startAMQP(t, Config{URL: u, SendTimeout: await.Scaled(3 * time.Second)})
	var k publishtest.Maker
	for range 2 { // the first one opens the lane
		warm := k.Make("", q, `{}`)
		r.Answers(t, warm)
	}
	mark := r.Mark()
	proxy.BlackHole(services.Downstream)
	messages := k.Many(2000, "", q)
	results := r.Answers(t, messages...)
	if sent := publishtest.Count(results, outbox.Unknown); sent < 5*smallestWindow {
		t.Errorf("only %d of %d messages were sent while the broker answered none", sent, len(messages))
	}
	proxy.Resume()
	r.AwaitSince(t, mark, publish.Ready)
}

// It has nearly all unconfirmed messages, and the others do not wait for its timeout.
func TestAStuckQueueLeavesRoomForOthers(t *testing.T) {
	t.Parallel()
	u, q, stuck := withStuckQueue(t)
	r := startAMQP(t, Config{URL: u, SendTimeout: await.Hang()})
	var k publishtest.Maker
	unanswered := k.Many(smallestWindow-10, "", stuck)
	r.PublishAll(unanswered...)
	good := k.Many(1600, "", q)
	publishtest.AllAre(t, r.Answers(t, good...), outbox.Confirmed)
	r.Mu.Lock()
	for _, m := range unanswered {
		if len(r.Results[m]) > 0 {
			t.Error("the others waited until the messages of the stuck queue had timed out")
			break
		}
	}
	r.Mu.Unlock()
}

package amqp

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
)

func checkNotCharged(t *testing.T, results []outbox.Result) {
	t.Helper()
	for _, result := range results {
		if result.Outcome == outbox.Rejected || result.Outcome == outbox.Impossible {
			t.Errorf("an outage was charged to message %d: %+v", result.Message.ID, result)
		}
	}
}

// Runs all tests that break a broker on one, because a broker takes seconds to start.
func TestOutagesOfAPrivateBroker(t *testing.T) {
	t.Parallel()
	services.Thorough(t, "starts its own server")
	broker := services.PrivateRabbitMQ(t, "max_message_size = 1000000")
	for _, part := range []struct {
		name string
		try  func(*testing.T, *services.RabbitMQ)
	}{
		{"poison on a shared lane", poisonOnASharedLane},
		{"a plugin fails at a message", pluginFails},
		{"blocked", blocked},
		{"shutdown while blocked", shutdownWhileBlocked}, // leaves it blocked
	} {
		t.Run(part.name, func(t *testing.T) { part.try(t, broker) })
	}
}

// blocked: an alarm stops the sending for longer than the send timeout, and no message becomes Unknown.
func blocked(t *testing.T, broker *services.RabbitMQ) {
	u := broker.URL("")
	a := newAdmin(t, u)
	q := a.queue(services.Name(t), nil)
	timeout := await.Scaled(2 * time.Second)
	r := startAMQP(t, Config{URL: u, SendTimeout: timeout})
	f := startFlow(r, &publishtest.Maker{}, "", q, 50)
	awaitConfirms(t, r, 100)

	mark := r.Mark()
	must(t, broker.RaiseMemoryAlarm(t.Context()))
	r.AwaitSince(t, mark, publish.Blocked)
	late := (&publishtest.Maker{ID: 1 << 30}).Make("", q, `{}`)
	publishtest.AllAre(t, r.Answers(t, late), outbox.NotSent)
	// rabbitmqctl takes longer than the timeout, so the timeout passes several times.
	must(t, broker.ClearMemoryAlarm(t.Context()))
	r.AwaitPhase(t, publish.Ready)
	awaitConfirms(t, r, 100)
	results := f.end(t)
	for _, result := range results {
		if result.Outcome != outbox.Confirmed && result.Outcome != outbox.NotSent {
			t.Errorf("message %d: %+v", result.Message.ID, result)
		}
	}
	checkArrived(t, results, a.drain(q))
	r.Mu.Lock()
	defer r.Mu.Unlock()
	for _, s := range r.States[mark:] {
		if s.Phase != publish.Blocked && s.Phase != publish.Ready {
			t.Errorf("state %v: %s; the connection must not be lost", s.Phase, s.Detail)
		}
	}
}

// shutdownWhileBlocked: Run returns although the broker reads nothing.
func shutdownWhileBlocked(t *testing.T, broker *services.RabbitMQ) {
	u := broker.URL("")
	newAdmin(t, u).queue("q", nil)
	r := startAMQP(t, Config{URL: u})
	must(t, broker.RaiseMemoryAlarm(t.Context()))
	var k publishtest.Maker
	large := k.Many(20, "", "q")
	for _, m := range large {
		m.Payload, m.Binary = bytes.Repeat([]byte{1}, 4<<20), true
	}
	r.PublishAll(large...)
	r.AwaitPhase(t, publish.Blocked)
	began := time.Now()
	r.Stop(t)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("Run returned after %v", took)
	}
	for _, result := range r.AwaitResults(t, large...) {
		if result.Outcome != outbox.NotSent && result.Outcome != outbox.Unknown {
			t.Errorf("message %d: %v", result.Message.ID, result.Outcome)
		}
	}
}

// Behind a black hole nothing is confirmed. All messages get a result within bounded time, and the breaker opens. Once
// the broker answers, all continues.
func TestMessagesToASilentBrokerTimeOut(t *testing.T) {
	t.Parallel()
	a, q, proxy, u := behindProxy(t)
	timeout := await.Scaled(time.Second)
	r := startAMQP(t, Config{URL: u, SendTimeout: timeout})
	var k publishtest.Maker
	r.publishUntilConfirmed(t, k.Many(10, "", q)...)

	mark := r.Mark()
	proxy.BlackHole()
	lost := k.Many(500, "", q)
	began := time.Now()
	results := r.Answers(t, lost...)
	if took := time.Since(began); took > 5*timeout {
		t.Errorf("the results took %v", took)
	}
	publishtest.AllAre(t, results, outbox.Unknown)
	r.AwaitSince(t, mark, publish.Paused)
	proxy.Resume()
	all := append(results, r.publishUntilConfirmed(t, k.Many(500, "", q)...)...)
	checkArrived(t, all, a.drain(q))
}

// With only one direction cut, writes get stuck in full socket buffers.
func TestABrokerThatStopsReadingDelaysNoResult(t *testing.T) {
	t.Parallel()
	_, q, proxy, u := behindProxy(t)
	r := startAMQP(t, Config{URL: u, SendTimeout: await.Scaled(time.Second)})
	var k publishtest.Maker
	for range 2 { // after the first answer the lane is being opened, before the second it is open
		r.publishUntilConfirmed(t, k.Make("", q, `{}`))
	}
	mark := r.Mark()
	proxy.BlackHole(services.Upstream)
	stuck := k.Many(200, "", q)
	for _, m := range stuck {
		m.Payload, m.Binary = bytes.Repeat([]byte{1}, 200<<10), true
	}
	results := r.Answers(t, stuck...)
	if unknown := publishtest.Count(results, outbox.Unknown); unknown == 0 || unknown+publishtest.Count(results, outbox.NotSent) != len(stuck) {
		t.Errorf("%d unknown and %d not sent of %d, the first because %s", unknown, publishtest.Count(results, outbox.NotSent), len(stuck), results[0].Detail)
	}
	proxy.Resume()
	r.AwaitSince(t, mark, publish.Ready)
}

// Meanwhile another relay may have taken over.
func TestAMessageThatWaitedForTheWriterIsMarked(t *testing.T) {
	t.Parallel()
	a, q, proxy, u := behindProxy(t)
	r := startAMQP(t, Config{URL: u})
	var k publishtest.Maker
	publishtest.AllAre(t, r.Answers(t, k.Many(1, "", q)...), outbox.Confirmed)
	proxy.BlackHole(services.Upstream)
	messages := k.Many(11, "", q)
	for _, m := range messages[:10] { // they fill the sockets' buffers
		m.Payload, m.Binary = bytes.Repeat([]byte{1}, 4<<20), true
	}
	last := messages[10]
	last.TakenAt = time.Now()
	r.PublishAll(messages...)
	await.Until(t, "another relay may have published it", last.MayBeKnown)
	proxy.Resume()
	publishtest.AllAre(t, r.AwaitResults(t, messages...), outbox.Confirmed)
	arrived := a.drain(q)
	if arrived[len(arrived)-1].Headers[outbox.PossibleDuplicateHeader] != true {
		t.Error("it has no mark")
	}
}

// suspendQueue suspends the process of a queue: it takes messages and answers none, like a quorum queue without a
// majority.
func suspendQueue(t *testing.T, broker *services.RabbitMQ, vhostURL, queue string) {
	t.Helper()
	if !broker.CanCtl() {
		t.Skip("queues can only be suspended with rabbitmqctl")
	}
	u, err := url.Parse(vhostURL)
	must(t, err)
	ask := func(what string) {
		code := fmt.Sprintf("rabbit_amqqueue:with(rabbit_misc:r(<<%q>>, queue, <<%q>>), fun(Q) -> sys:%s(amqqueue:get_pid(Q)) end).",
			strings.TrimPrefix(u.Path, "/"), queue, what)
		ctl(t, broker, "eval", code)
	}
	ask("suspend")
	t.Cleanup(func() { ask("resume") })
}

// withStuckQueue creates a virtual host with a working queue and one that never confirms.
func withStuckQueue(t *testing.T) (u, q, stuck string) {
	t.Helper()
	broker := services.SharedRabbitMQ(t)
	u = broker.VHost(t)
	a := newAdmin(t, u)
	q, stuck = a.queue(services.Name(t), nil), a.queue(services.Name(t)+"_s", nil)
	suspendQueue(t, broker, u, stuck)
	return u, q, stuck
}

func TestOnlyMessagesOfAStuckQueueTimeOut(t *testing.T) {
	t.Parallel()
	u, q, stuck := withStuckQueue(t)
	timeout := await.Scaled(2 * time.Second)
	r := startAMQP(t, Config{URL: u, SendTimeout: timeout})
	mark := r.Mark()
	k := &publishtest.Maker{}
	unanswered := k.Many(100, "", stuck)
	r.PublishAll(unanswered...)
	f := startFlow(r, k, "", q, 100)
	results := r.AwaitResults(t, unanswered...)
	publishtest.AllAre(t, results, outbox.Unknown)
	others := f.end(t)
	publishtest.AllAre(t, others, outbox.Confirmed)
	if len(others) < 500 { // 100 of them are in flight at a time
		t.Errorf("only %d others were confirmed within %v", len(others), timeout)
	}
	r.Mu.Lock()
	defer r.Mu.Unlock()
	if len(r.States) > mark {
		t.Errorf("states changed: %v", r.States[mark:])
	}
}

// The other messages of the exchange continue.
func TestALaneWithTimedOutMessagesIsReplaced(t *testing.T) {
	t.Parallel()
	u, q, stuck := withStuckQueue(t)
	r := startAMQP(t, Config{URL: u, SendTimeout: await.Scaled(2 * time.Second), MaxInFlight: 40})
	k := &publishtest.Maker{}
	r.publishUntilConfirmed(t, k.Make("", q, `{}`))
	mark := r.Mark()
	f := startFlow(r, k, "", q, 10)
	other := &publishtest.Maker{ID: 1 << 30}
	for range 2 { // more than may be in flight, together
		unanswered := other.Many(30, "", stuck)
		publishtest.AllAre(t, r.Answers(t, unanswered...), outbox.Unknown)
	}
	publishtest.AllAre(t, f.end(t), outbox.Confirmed)
	if r.Mark() != mark {
		t.Error("the connection was lost")
	}
}

// A stuck queue looks like an outage. The breaker then lets a message for another queue through.
func TestAStuckQueueDoesNotKeepTheBreakerOpen(t *testing.T) {
	t.Parallel()
	u, q, stuck := withStuckQueue(t)
	r := startAMQP(t, Config{URL: u, SendTimeout: await.Scaled(time.Second)})
	var k publishtest.Maker
	for range 3 { // two outages, then through the half-open breaker
		m := k.Make("", stuck, `{}`)
		mark := r.Mark()
		publishtest.AllAre(t, r.Answers(t, m), outbox.Unknown)
		r.AwaitSince(t, mark, publish.Ready)
	}
	blocking, good := k.Make("", stuck, `{}`), k.Many(10, "", q)
	r.PublishAll(blocking)
	publishtest.AllAre(t, r.Answers(t, good...), outbox.Confirmed)
	publishtest.AllAre(t, r.AwaitResults(t, blocking), outbox.Unknown)
}

// An outage logs its start, each cause once, and its end, without the password.
func TestEachCauseOfAnOutageIsLoggedOnce(t *testing.T) {
	t.Parallel()
	broker := services.SharedRabbitMQ(t)
	u := limitedUser(t, broker.VHost(t), ".*")
	proxy := services.NewProxy(t, broker.Addr())
	var log publishtest.Buffer
	r := startAMQP(t, Config{URL: withHost(t, u, proxy.Addr()), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	mark := r.Mark()
	proxy.Refuse()
	proxy.Cut()
	r.AwaitSince(t, mark, publish.Paused)
	await.Until(t, "a failed attempt in the log", func() bool { return strings.Contains(strings.Join(log.Lines(), "\n"), "event=broker_down") })
	proxy.Accept()
	r.AwaitPhase(t, publish.Ready)
	r.Stop(t)
	var events []string
	causes := map[string]bool{}
	value := regexp.MustCompile(`(event|error)=("[^"]*"|\S+)`)
	for _, line := range log.Lines() {
		cause := strings.Join(value.FindAllString(line, -1), " ")
		name, _, _ := strings.Cut(cause, " ")
		events = append(events, name)
		if causes[cause] && name == "event=broker_down" {
			t.Errorf("logged twice: %s", line)
		}
		causes[cause] = true
	}
	got := strings.Join(slices.Compact(events), " ")
	if want := "event=broker_connected event=broker_lost event=broker_down event=broker_connected"; got != want {
		t.Errorf("got %s\nwant %s\n%s", got, want, strings.Join(log.Lines(), "\n"))
	}
	if all := strings.Join(log.Lines(), "\n"); strings.Contains(all, "secret") {
		t.Errorf("the password is in the log:\n%s", all)
	}
}

// behindProxyWithFullQueue also returns a queue that rejects every message.
func behindProxyWithFullQueue(t *testing.T) (takes, full string, proxy *services.Proxy, url string) {
	t.Helper()
	a, takes, proxy, url := behindProxy(t)
	full = a.queue(services.Name(t), amqp091.Table{"x-max-length": int32(0), "x-overflow": "reject-publish"})
	return takes, full, proxy, url
}

func (r *running) reconnect(t *testing.T, proxy *services.Proxy) {
	t.Helper()
	mark := r.Mark()
	proxy.Cut()
	r.AwaitSince(t, mark, publish.Connecting)
	r.AwaitSince(t, mark, publish.Ready)
}

func (r *running) outcome(t *testing.T, m *outbox.Message) outbox.Outcome {
	t.Helper()
	return r.Answers(t, m)[0].Outcome
}

// A quorum queue without a leader rejects messages like a full queue. So rejections cost no attempt after an outage,
// until RabbitMQ has confirmed a message.
func TestARejectionRightAfterAnOutageCostsNoAttempt(t *testing.T) {
	t.Parallel()
	takes, full, proxy, url := behindProxyWithFullQueue(t)
	r := startAMQP(t, Config{URL: url, SendTimeout: time.Hour})
	var k publishtest.Maker
	if got := r.outcome(t, k.Make("", full, `{}`)); got != outbox.Rejected {
		t.Errorf("on the first connection: %s, want a rejection", got)
	}
	for range 2 {
		r.reconnect(t, proxy)
		if got := r.outcome(t, k.Make("", full, `{}`)); got != outbox.Unknown {
			t.Errorf("after an outage: %s, want unknown", got)
		}
		if got := r.outcome(t, k.Make("", takes, `{}`)); got != outbox.Confirmed {
			t.Errorf("to a queue with room: %s, want a confirm", got)
		}
		if got := r.outcome(t, k.Make("", full, `{}`)); got != outbox.Rejected {
			t.Errorf("after a confirm: %s, want a rejection", got)
		}
	}
}

// If RabbitMQ confirms nothing within the send timeout, its rejections count.
func TestRejectionsCountAgainAfterTheSendTimeout(t *testing.T) {
	t.Parallel()
	_, full, proxy, url := behindProxyWithFullQueue(t)
	r := startAMQP(t, Config{URL: url, SendTimeout: await.Scaled(time.Second)})
	r.reconnect(t, proxy)
	var k publishtest.Maker
	await.Until(t, "a rejection counts", func() bool { return r.outcome(t, k.Make("", full, `{}`)) == outbox.Rejected })
}

// A broker that confirms late has everything that was sent to it. After the time-out, the first answer does not show that
// the trouble is over: what is sent at once would be sent again at once.
func TestFewMessagesLeaveAfterConfirmsWereLate(t *testing.T) {
	t.Parallel()
	u, _, queue := withQueue(t)
	frames, u := behindFrames(t, u)
	const all = 1000
	r := startAMQP(t, Config{URL: u, SendTimeout: await.Scaled(time.Second)})
	var k publishtest.Maker
	unknown := func() (n int) {
		r.AwaitPhase(t, publish.Ready)
		mark := r.Mark()
		n = publishtest.Count(r.Answers(t, k.Many(all, "", queue)...), outbox.Unknown)
		r.AwaitSince(t, mark, publish.Ready)
		return n
	}
	frames.LateConfirms(time.Hour)
	if n := unknown(); n != all {
		t.Errorf("the first time, %d messages of %d may be copies", n, all)
	}
	var confirms atomic.Int64
	frames.Rule(func(frame []byte) time.Duration {
		if services.IsConfirm(frame) && confirms.Add(1) > 1 {
			return time.Hour
		}
		return 0
	})
	if n := unknown(); n > all/4 {
		t.Errorf("the second time, %d messages of %d may be copies", n, all)
	}
	frames.LateConfirms(0)
	r.publishUntilConfirmed(t, k.Many(all, "", queue)...)
}

// After an outage, one message goes first. While it has no answer, the next one follows only after half of the send
// timeout, a second at most. After an answer, the others follow.
func TestAHalfOpenBreakerSendsOneMessageAtATime(t *testing.T) {
	u, a, q := withQueue(t)
	frames, u := behindFrames(t, u) // all but confirms pass it, so that the channel opens
	proxy := services.NewProxy(t, frames.Addr())
	timeout := await.Scaled(time.Second)
	r := startAMQP(t, Config{URL: withHost(t, u, proxy.Addr()), SendTimeout: timeout})
	proxy.Refuse()
	proxy.Cut()
	r.AwaitPhase(t, publish.Paused)
	proxy.Accept()
	r.AwaitPhase(t, publish.Ready)
	frames.LateConfirms(time.Hour)
	mark := r.Mark()
	var k publishtest.Maker
	messages := k.Many(100, "", q)
	results := r.Answers(t, messages...)
	apart, sent := min(time.Second, timeout/2), 0
	for i, result := range results {
		at := result.Message.SentAt
		if (result.Outcome == outbox.NotSent) != at.IsZero() {
			t.Errorf("message %d is %v and was sent at %v", i, result.Outcome, at)
		}
		if at.IsZero() {
			continue
		}
		if sent++; i >= sent {
			t.Errorf("message %d was sent before others", i)
		} else if i > 0 && at.Sub(messages[i-1].SentAt) < apart {
			t.Errorf("message %d was sent %v after the last one", i, at.Sub(messages[i-1].SentAt))
		}
	}
	if most := 2 + int(timeout/apart); sent < 1 || sent > most {
		t.Errorf("%d messages were sent through a half-open breaker, want at least 1 and at most %d", sent, most)
	}
	r.AwaitSince(t, mark, publish.Paused)
	frames.LateConfirms(0)
	all := append(results, r.publishUntilConfirmed(t, k.Many(100, "", q)...)...)
	r.awaitBreaker(t, publish.Paused, "open")
	r.awaitBreaker(t, publish.Ready, "half_open")
	r.awaitBreaker(t, publish.Ready, "closed")
	checkArrived(t, all, a.drain(q))
}

func (r *running) awaitBreaker(t *testing.T, phase publish.Phase, breaker string) {
	t.Helper()
	r.Await(t, "a breaker that is "+breaker, func() bool {
		return slices.ContainsFunc(r.States, func(s publish.State) bool { return s.Phase == phase && s.Breaker == breaker })
	})
}

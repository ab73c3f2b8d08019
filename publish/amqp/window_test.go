package amqp

import (
	"math/rand/v2"
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

// modelTick is the step of the model's clock.
const modelTick = 200 * time.Microsecond

// modelQueue takes messages one by one, and then commits all taken ones together.
type modelQueue struct {
	rate   float64       // messages a second
	knee   int           // with more messages the rate falls; 0: never
	cost   float64       // what 1600 messages more cost of the rate, as a share of the lower one
	commit time.Duration // what a commit takes
	silent bool          // it confirms nothing

	waiting    []modelMessage
	confirmed  int
	taken      float64 // messages, and a part of one
	committing int     // the first messages
	ends       time.Duration
}

// with returns a queue like this one, with the messages of another.
func (q modelQueue) with(other *modelQueue) modelQueue {
	q.waiting, q.taken, q.committing, q.ends = other.waiting, other.taken, other.committing, other.ends
	return q
}

// confirms returns how many messages it confirms in a tick that begins at now.
func (q *modelQueue) confirms(now time.Duration) (confirmed int) {
	if q.silent {
		return 0
	}
	rate := q.rate
	if q.knee > 0 {
		rate /= 1 + q.cost*min(1, max(0, float64(len(q.waiting)-q.knee)/1600))
	}
	q.taken = min(q.taken+rate*modelTick.Seconds(), float64(len(q.waiting)))
	if now < q.ends {
		return 0
	}
	confirmed = q.committing
	q.taken -= float64(confirmed)
	q.committing, q.ends = int(q.taken), now+q.commit
	return confirmed
}

// model is a sender that always has messages, and a broker whose clock only the model moves.
type model struct {
	queues   []*modelQueue
	distance time.Duration // the time there and back
	noise    float64       // the clock is faster or slower by up to this share, for some ms

	throttle *throttle
	now      time.Duration
	ticks    int
	next     int                      // the queue of the next message
	there    map[int][][]modelMessage // arriving at the broker, by tick and queue
	back     map[int][]modelMessage   // confirms that arrive, by tick
	paused   bool
	stuck    time.Duration
	before   int  // answers when the pause began
	empty    bool // there is nothing to send
	random   *rand.Rand
	pace     float64
}

type modelMessage struct {
	epoch int
	sent  time.Duration
}

func newModel(w *sendWindow, distance time.Duration, queues ...*modelQueue) *model {
	return &model{
		queues: queues, distance: distance, throttle: newThrottle(w), pace: 1,
		there: map[int][][]modelMessage{}, back: map[int][]modelMessage{}, random: rand.New(rand.NewPCG(1, 2)),
	}
}

func (m *model) half() int { return int(m.distance/modelTick) / 2 }

func (m *model) tick() {
	if m.noise > 0 && m.ticks%25 == 0 {
		m.pace = 1 + m.noise*(2*m.random.Float64()-1)
	}
	for _, message := range m.back[m.ticks] {
		m.throttle.confirmed(m.now - message.sent)
		m.throttle.answered(message.epoch)
	}
	delete(m.back, m.ticks)
	m.send()
	for i, arrived := range m.there[m.ticks] {
		m.queues[i].waiting = append(m.queues[i].waiting, arrived...)
	}
	delete(m.there, m.ticks)
	for _, q := range m.queues {
		n := q.confirms(m.now)
		q.confirmed += n
		at := m.ticks + 1 + m.half()
		m.back[at] = append(m.back[at], q.waiting[:n]...)
		q.waiting = slices.Delete(q.waiting, 0, n)
	}
	m.ticks++
	m.now += time.Duration(float64(modelTick) * m.pace)
}

// send is the loop of the sender.
func (m *model) send() {
	if m.empty {
		m.throttle.ranOut()
		m.paused = false
		return
	}
	if m.paused {
		if m.throttle.allowed(m.now) == 0 {
			if m.now < m.stuck {
				return
			}
			m.throttle.notAnswered(m.before)
		}
	}
	for {
		n := m.throttle.allowed(m.now)
		if m.paused = n == 0; m.paused {
			m.stuck, m.before = m.now+m.throttle.longestSilence(), m.throttle.answers
			return
		}
		for range n {
			at := m.ticks + m.half()
			if m.there[at] == nil {
				m.there[at] = make([][]modelMessage, len(m.queues))
			}
			m.there[at][m.next] = append(m.there[at][m.next], modelMessage{m.throttle.sent(), m.now})
			m.next = (m.next + 1) % len(m.queues)
		}
	}
}

// run lets time pass, and returns the answers a second.
func (m *model) run(d time.Duration) float64 {
	from, before := m.now, m.throttle.answers
	for m.now < from+d {
		m.tick()
	}
	return float64(m.throttle.answers-before) / (m.now - from).Seconds()
}

type modelKind struct {
	name     string
	distance time.Duration
	queues   func() []*modelQueue
}

func classicQueues(n int, rate float64) func() (queues []*modelQueue) {
	return func() (queues []*modelQueue) {
		for range n {
			queues = append(queues, &modelQueue{rate: rate / float64(n), knee: 400, cost: 0.25, commit: time.Millisecond})
		}
		return queues
	}
}

func commitQueue(rate float64, commit time.Duration) func() []*modelQueue {
	return func() []*modelQueue { return []*modelQueue{{rate: rate, commit: commit}} }
}

var modelKinds = []modelKind{
	{"classic", 0, classicQueues(1, 25_000)},
	{"slow classic", 0, classicQueues(1, 3000)},
	{"quorum", 0, commitQueue(12_000, 2*time.Millisecond)},
	{"fast quorum", 0, commitQueue(50_000, 2*time.Millisecond)},
	{"stream", 0, commitQueue(30_000, time.Millisecond)},
	{"classic and quorum", 0, func() []*modelQueue {
		return append(classicQueues(1, 20_000)(), commitQueue(8000, 2*time.Millisecond)()...)
	}},
	{"four classic", 0, classicQueues(4, 25_000)},
	{"classic, 1 ms away", time.Millisecond, classicQueues(1, 25_000)},
	{"classic, 20 ms away", 20 * time.Millisecond, classicQueues(1, 25_000)},
	{"classic, 80 ms away", 80 * time.Millisecond, classicQueues(1, 25_000)},
	{"quorum, 80 ms away", 80 * time.Millisecond, commitQueue(12_000, 2*time.Millisecond)},
	{"slow disk", 0, commitQueue(70_000, 10*time.Millisecond)},
	{"slower disk", 0, commitQueue(70_000, 50*time.Millisecond)},
}

const modelMost = 5000

// start begins to send to a broker of this kind.
func (k modelKind) start(w *sendWindow) *model { return newModel(w, k.distance, k.queues()...) }

// best returns the rate of the best fixed window, and that window.
func (k modelKind) best() (best float64, with int) {
	for _, size := range []int{200, 400, 1000, 2000, 3500, modelMost} {
		m := k.start(newSendWindow(size, size))
		m.run(time.Second)
		if rate := m.run(2 * time.Second); rate > best {
			best, with = rate, size
		}
	}
	return best, with
}

func TestTheWindowIsAsGoodAsTheBestFixedOne(t *testing.T) {
	t.Parallel()
	for _, kind := range modelKinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			best, with := kind.best()
			for _, noise := range []float64{0, 0.3} {
				m := kind.start(newSendWindow(smallestWindow, modelMost))
				m.noise = noise
				m.run(4 * time.Second)
				if rate := m.run(8 * time.Second); rate < 0.95*best {
					t.Errorf("with noise %v the rate is %.0f/s, and %.0f/s with a window of %d", noise, rate, best, with)
				}
			}
		})
	}
}

// A larger window makes a classic queue slower, and a disk that becomes slow needs one.
func TestTheWindowFollowsTheBroker(t *testing.T) {
	t.Parallel()
	fast := modelKind{"fast disk", 0, func() []*modelQueue {
		return []*modelQueue{{rate: 30_000, commit: time.Millisecond, knee: 400, cost: 1}}
	}}
	slow := modelKind{"slow disk", 0, commitQueue(30_000, 40*time.Millisecond)}
	m := fast.start(newSendWindow(smallestWindow, modelMost))
	for range 2 {
		for _, now := range []modelKind{fast, slow} {
			*m.queues[0] = now.queues()[0].with(m.queues[0])
			m.run(10 * time.Second)
			best, with := now.best()
			rate := m.run(5 * time.Second)
			if rate < 0.95*best {
				t.Errorf("%s: the rate is %.0f/s, and %.0f/s with a window of %d", now.name, rate, best, with)
			}
		}
	}
}

// Its messages count until it can have answered.
func TestADistantBrokerIsNotStuck(t *testing.T) {
	t.Parallel()
	m := newModel(newSendWindow(400, 400), 80*time.Millisecond, classicQueues(1, 25_000)()...)
	m.run(time.Second)
	epoch := m.throttle.epoch
	m.run(3 * time.Second)
	if m.throttle.epoch != epoch {
		t.Errorf("its messages were taken for stuck %d times", m.throttle.epoch-epoch)
	}
}

// Whatever queues and sender do, the other queues get their messages, and all of them once they work again.
func TestTheWindowNeverEndsTheSending(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom(modelKinds).Draw(t, "kind")
		m := kind.start(newSendWindow(smallestWindow, rapid.IntRange(1, modelMost).Draw(t, "most")))
		m.queues = append(m.queues, &modelQueue{rate: 1000}) // it always works
		works := m.queues[len(m.queues)-1]
		t.Repeat(map[string]func(*rapid.T){
			"silence":   func(t *rapid.T) { rapid.SampledFrom(m.queues[:len(m.queues)-1]).Draw(t, "queue").silent = true },
			"revive":    func(t *rapid.T) { rapid.SampledFrom(m.queues[:len(m.queues)-1]).Draw(t, "queue").silent = false },
			"slow down": func(t *rapid.T) { rapid.SampledFrom(m.queues).Draw(t, "queue").commit = 300 * time.Millisecond },
			"speed up":  func(t *rapid.T) { rapid.SampledFrom(m.queues).Draw(t, "queue").commit = 0 },
			"run out":   func(t *rapid.T) { m.empty = rapid.Bool().Draw(t, "empty") },
			"run":       func(t *rapid.T) { m.run(time.Duration(rapid.IntRange(1, 300).Draw(t, "ms")) * time.Millisecond) },
		})
		m.empty = false
		before := works.confirmed
		m.run(3 * time.Second)
		if works.confirmed == before {
			t.Fatal("the queue that works got no message")
		}
	})
}

package amqp

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

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

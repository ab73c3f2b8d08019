package amqp

import (
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/signal"
)

const (
	// burst is how many messages leave together after a pause; half of a small window. A write to the socket costs as
	// much as many messages, both here and at the broker. Larger bursts would let a distant broker wait.
	burst = 200
	// silentAfter is how long the broker may give fewer than fewAnswers answers, besides the time that its distance
	// explains, before its messages no longer count. A slow or broken queue must not delay the others.
	silentAfter = 50 * time.Millisecond
	fewAnswers  = 50
	// mostDistance bounds that time: the first confirm may come late for another reason.
	mostDistance = 500 * time.Millisecond
)

// throttle tells the sender how many messages may wait for confirms. It is not a promise like MaxInFlight: a broker
// that does not answer gets more after a moment, so that a broken queue does not delay the others.
type throttle struct {
	// room is signalled at the end of a pause.
	room signal.Signal

	mu      sync.Mutex
	window  *sendWindow
	fastest time.Duration // the fastest confirm, 0: none yet; it shows the distance to the broker
	waiting int           // unanswered messages of this epoch
	epoch   int           // messages of earlier epochs do not count
	paused  bool          // until there is room for a burst
	answers int           // in total
	// trial: after a lost connection, one message is sent at first, and two more for each answer, until the window is
	// full. What is sent at once would be sent again at once. The trial is also how long the first answer may take
	// before the next message is sent, because only the queue of the first may be stuck. 0: no trial.
	trial time.Duration
	heard int // answers of the broker
	limit int // as of the last call of allowed
}

func newThrottle(w *sendWindow) *throttle {
	return &throttle{room: signal.New(), window: w, limit: w.size}
}

// allowed returns how many messages may be sent now. At zero it pauses until there is room for a burst.
func (t *throttle) allowed(now time.Duration) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.paused && t.trial == 0 && t.waiting >= t.window.size {
		t.window.filled(now, t.answers)
	}
	if t.limit = t.window.size; t.trial > 0 {
		t.limit = min(t.limit, 1+2*t.heard)
		if t.limit == t.window.size {
			t.trial = 0
		}
	}
	t.paused = t.waiting >= t.limit || (t.paused && t.waiting > t.resumesAt())
	if t.paused {
		return 0
	}
	return t.limit - t.waiting
}

// resumesAt returns with how many waiting messages a pause ends.
func (t *throttle) resumesAt() int { return t.limit - min(t.limit/2, burst) }

// ranOut records that the window is not full because there is nothing to send.
func (t *throttle) ranOut() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.window.notFilled()
}

// sent counts a message and returns its epoch, for answered.
func (t *throttle) sent() (epoch int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting++
	return t.epoch
}

// confirmed records how long a confirm took.
func (t *throttle) confirmed(took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.heard++
	if t.fastest == 0 || took < t.fastest {
		t.fastest = max(took, 1)
		t.window.guess(t.fastest)
	}
}

// manyTimesThere returns a time in which a working broker has answered, judging by its distance; 0: unknown.
func (t *throttle) manyTimesThere() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return 4 * t.fastest
}

// answered must be called once for each message that no longer waits.
func (t *throttle) answered(epoch int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answers++
	if epoch != t.epoch {
		return
	}
	t.waiting--
	if t.paused && t.waiting <= t.resumesAt() {
		t.room.Send()
	}
}

// longestSilence returns how long the broker may be silent, and the number of answers so far, for notAnswered.
func (t *throttle) longestSilence() (longest time.Duration, answers int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.trial > 0 && t.heard == 0 {
		return t.trial, t.answers
	}
	return silentAfter + min(2*t.fastest, mostDistance), t.answers
}

// notAnswered gets the number of answers when the pause began. If few came since, it ends the epoch: messages sent so
// far no longer count.
func (t *throttle) notAnswered(before int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.answers-before < fewAnswers {
		t.epoch++
		t.waiting = 0
	}
}

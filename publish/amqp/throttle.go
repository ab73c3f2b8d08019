package amqp

import "time"

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
	window  *sendWindow
	fastest time.Duration // the fastest confirm, 0: none yet; it shows the distance to the broker
	waiting int           // unanswered messages of this epoch
	epoch   int           // messages of earlier epochs do not count
	paused  bool          // until there is room for a burst
	answers int           // in total
}

func newThrottle(w *sendWindow) *throttle {
	return &throttle{window: w}
}

// allowed returns how many messages may be sent now. At zero it pauses until there is room for a burst.
func (t *throttle) allowed(now time.Duration) int {
	if !t.paused && t.waiting >= t.window.size {
		t.window.filled(now, t.answers)
	}
	limit := t.window.size
	t.paused = t.waiting >= limit || t.paused && t.waiting > limit-min(limit/2, burst)
	if t.paused {
		return 0
	}
	return limit - t.waiting
}

// ranOut records that the window is not full because there is nothing to send.
func (t *throttle) ranOut() { t.window.notFilled() }

// sent counts a message and returns its epoch, for answered.
func (t *throttle) sent() (epoch int) {
	t.waiting++
	return t.epoch
}

// confirmed records how long a confirm took.
func (t *throttle) confirmed(took time.Duration) {
	if t.fastest == 0 || took < t.fastest {
		t.fastest = max(took, 1)
		t.window.guess(t.fastest)
	}
}

// answered must be called once for each message that no longer waits.
func (t *throttle) answered(epoch int) {
	t.answers++
	if epoch == t.epoch {
		t.waiting--
	}
}

// longestSilence returns how long a broker that works may be silent.
func (t *throttle) longestSilence() time.Duration {
	return silentAfter + min(2*t.fastest, mostDistance)
}

// notAnswered gets the number of answers when the pause began. If few came since, it ends the epoch: messages sent so
// far no longer count.
func (t *throttle) notAnswered(before int) {
	if t.answers-before < fewAnswers {
		t.epoch++
		t.waiting = 0
	}
}

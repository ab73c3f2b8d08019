package publish

import (
	"sync"
	"time"
)

const (
	// creditOfRabbitMQ is for how many messages RabbitMQ's processes give each other credit
	// (credit_flow_default_credit). With more on their way they stop and start one another, and
	// a classic queue takes a fifth less for a tenth more of the broker's time (docs/performance.md).
	creditOfRabbitMQ = 400
	// enoughRate, in messages a second: if the broker is so distant that the credit would not
	// allow it, more may be on their way.
	enoughRate = 60_000
	// stuckAfter is how long the broker may give fewAnswers until what it has does not count any more:
	// a queue that is slow, or out of order, must not hold up the others.
	stuckAfter = 50 * time.Millisecond
	fewAnswers = creditOfRabbitMQ / 8
)

// throttle tells the sender how many messages may wait for their confirms. It is no promise as
// MaxInFlight is: a broker that answers nothing gets more after a moment, so that a queue out of
// order does not keep the others waiting.
type throttle struct {
	// room is signalled when a pause is over; the sender waits on it.
	room chan struct{}

	mu      sync.Mutex
	known   bool          // something was confirmed
	fastest time.Duration // of all confirms, once known: how distant the broker is
	waiting int           // messages of this epoch without an answer
	epoch   int           // what was sent in an earlier one does not count
	paused  bool          // until half of the messages have their answer
	answers int           // so far
}

func newThrottle() *throttle { return &throttle{room: make(chan struct{}, 1)} }

// most is how many messages may wait for their confirms.
func (t *throttle) most() int {
	if !t.known {
		return creditOfRabbitMQ
	}
	return max(creditOfRabbitMQ, int(enoughRate*t.fastest.Seconds()))
}

// allowed is how many messages may be sent now. Where that is none there is a pause, until half
// of them have their answer: hundreds then leave in one write.
func (t *throttle) allowed() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	most := t.most()
	t.paused = t.waiting >= most || (t.paused && t.waiting > most/2)
	if t.paused {
		return 0
	}
	return most - t.waiting
}

// sent counts a message and returns its epoch, for answered.
func (t *throttle) sent() (epoch int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting++
	return t.epoch
}

// confirmed tells how long a confirm took.
func (t *throttle) confirmed(took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.known || took < t.fastest {
		t.known, t.fastest = true, took
	}
}

// manyTimesThere is a time within which a broker that answers at all has answered, judged by its
// distance goes; 0 where that is not known.
func (t *throttle) manyTimesThere() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return 4 * t.fastest
}

// answered is told once of each message of an epoch that waits no more.
func (t *throttle) answered(epoch int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answers++
	if epoch != t.epoch {
		return
	}
	t.waiting--
	if t.paused && t.waiting <= t.most()/2 {
		select {
		case t.room <- struct{}{}:
		default:
		}
	}
}

// answersSoFar counts them.
func (t *throttle) answersSoFar() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.answers
}

// notAnswered is told how many answers there were stuckAfter ago. Where there are few more it ends
// the epoch: what was sent so far does not count any more.
func (t *throttle) notAnswered(before int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.answers-before < fewAnswers {
		t.epoch++
		t.waiting = 0
	}
}

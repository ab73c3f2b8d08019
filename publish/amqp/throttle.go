package amqp

import (
	"sync"
	"time"
)

const (
	// creditOfRabbitMQ is how many messages RabbitMQ's processes grant each other (credit_flow_default_credit). With
	// more messages in flight they stop and start each other, and a classic queue takes fewer messages
	// (docs/results/README.md).
	creditOfRabbitMQ = 400
	// enoughRate is in messages per second. If the broker is so distant that the credit would not allow this rate, more
	// messages may be in flight.
	enoughRate = 60_000
	// stuckAfter is how long the broker may give fewer than fewAnswers answers before its messages no longer count. A
	// slow or broken queue must not delay the others.
	stuckAfter = 50 * time.Millisecond
	fewAnswers = creditOfRabbitMQ / 8
)

// throttle tells the sender how many messages may wait for confirms. It is not a promise like MaxInFlight: a broker
// that does not answer gets more after a moment, so that a broken queue does not delay the others.
type throttle struct {
	// room is signalled at the end of a pause.
	room chan struct{}

	mu      sync.Mutex
	known   bool          // a message was confirmed
	fastest time.Duration // the fastest confirm, once known: the distance to the broker
	waiting int           // unanswered messages of this epoch
	epoch   int           // messages of earlier epochs do not count
	paused  bool          // until half of the messages are answered
	answers int           // in total
}

func newThrottle() *throttle { return &throttle{room: make(chan struct{}, 1)} }

// most returns how many messages may wait for confirms.
func (t *throttle) most() int {
	if !t.known {
		return creditOfRabbitMQ
	}
	return max(creditOfRabbitMQ, int(enoughRate*t.fastest.Seconds()))
}

// allowed returns how many messages may be sent now. At zero it pauses until half of them are answered, so that
// hundreds leave in one write.
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

// confirmed records how long a confirm took.
func (t *throttle) confirmed(took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.known || took < t.fastest {
		t.known, t.fastest = true, took
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
	if t.paused && t.waiting <= t.most()/2 {
		select {
		case t.room <- struct{}{}:
		default:
		}
	}
}

// answersSoFar returns the number of answers.
func (t *throttle) answersSoFar() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.answers
}

// notAnswered gets the number of answers stuckAfter ago. If few came since, it ends the epoch: messages sent so far no
// longer count.
func (t *throttle) notAnswered(before int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.answers-before < fewAnswers {
		t.epoch++
		t.waiting = 0
	}
}

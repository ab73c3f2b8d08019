package amqp

import (
	"math"
	"time"
)

const (
	// smallestWindow is where the search begins: the credit that RabbitMQ's processes grant each other
	// (credit_flow_default_credit), near which classic queues are fastest. With 200, a broker on the same machine is as
	// fast, and one at a distance of 1 ms loses a seventh. A distant broker begins with as many messages as this guess
	// of its rate, in messages per second, keeps on the way.
	smallestWindow = 400
	guessedRate    = 60_000
	// A measurement takes at least this time and this many windows of answers; shorter ones depend on chance.
	measureFor     = 200 * time.Millisecond
	measureWindows = 2
	// trialFactor is the step of a trial. A larger window must raise the rate by mustGain, and a smaller one may lower
	// it by mayLose. Rates vary by chance: with equal steps in both directions, the window would wander, and large
	// windows make classic queues slow.
	trialFactor = 1.5
	mustGain    = 0.04
	mayLose     = 0.02
	// remembered is how much of the highest rate counts at the next measurement.
	remembered = 0.99
	// mostPause is the most measurements between two trials. If the rate changes by more than the share changed without
	// a trial, the broker has changed, and trials follow at once.
	mostPause = 8
	changed   = 0.25
)

// sendWindow finds how many unconfirmed messages make the broker fastest: it measures the rate of answers while the
// window is full, and tries a larger and a smaller window in turn. It does not look at the latency, which also grows
// with a larger window if RabbitMQ commits more messages together, and then so does the rate. Libraries that limit
// concurrency by latency would stop there.
type sendWindow struct {
	least, most int
	size        int // the present limit
	base        int // the best limit so far; another size is a trial

	baseRate  float64 // answers per second with base, in the last measurement; 0: none yet
	bestRate  float64 // the highest of the recent measurements with base; a larger window must be faster than that
	shrink    bool    // the direction of the next trial
	pause     int     // measurements of base until then
	nextPause int     // pause after a trial that fails
	unsettled int     // answers until the effect of an earlier size is over

	// A measurement is the sum of the times between two moments when the window was full, without those when the sender
	// ran out of messages.
	full     bool
	fullAt   time.Duration // the last such moment
	before   int           // answers until then
	duration time.Duration
	answers  int
}

func newSendWindow(least, most int) *sendWindow {
	w := &sendWindow{least: least, most: max(least, most), nextPause: 1}
	w.base = w.bounded(smallestWindow)
	w.size = w.base
	return w
}

func (w *sendWindow) bounded(size int) int { return min(max(size, w.least), w.most) }

// guess sets the window by the time of the fastest confirm, until the rate is known.
func (w *sendWindow) guess(fastest time.Duration) {
	if w.baseRate == 0 {
		w.base = w.bounded(max(smallestWindow, int(guessedRate*fastest.Seconds())))
		w.setSize(w.base)
	}
}

func (w *sendWindow) setSize(size int) {
	w.unsettled = max(size, w.size)
	w.size, w.full, w.duration, w.answers = size, false, 0, 0
}

// filled records that the window is full, after this many answers in total.
func (w *sendWindow) filled(now time.Duration, answers int) {
	took, came, ran := now-w.fullAt, answers-w.before, w.full
	w.full, w.fullAt, w.before = true, now, answers
	switch {
	case !ran:
	case w.unsettled > 0:
		w.unsettled -= came
	default:
		w.duration += took
		w.answers += came
		if w.duration >= measureFor && w.answers >= measureWindows*w.size {
			rate := float64(w.answers) / w.duration.Seconds()
			w.duration, w.answers = 0, 0
			w.measured(rate)
		}
	}
}

// notFilled records that something else than the window holds the sender back. A larger window then brings nothing.
func (w *sendWindow) notFilled() {
	w.full = false
	if w.size > w.base {
		w.endTrial()
	}
}

// measured decides on a trial, or begins the next one.
func (w *sendWindow) measured(rate float64) {
	switch {
	case w.size == w.base:
		if math.Abs(rate-w.baseRate) > changed*w.baseRate {
			w.pause, w.nextPause, w.bestRate = 0, 1, 0
		}
		w.baseRate, w.bestRate = rate, max(rate, w.bestRate*remembered)
		if w.pause--; w.pause < 0 {
			w.try()
		}
	case w.size > w.base && rate > w.bestRate*(1+mustGain), w.size < w.base && rate > w.baseRate*(1-mayLose):
		w.base, w.baseRate, w.bestRate, w.pause, w.nextPause = w.size, rate, rate, 0, 1
	default:
		w.endTrial()
	}
}

func (w *sendWindow) try() {
	size := float64(w.base) * trialFactor
	if w.shrink {
		size = float64(w.base) / trialFactor
	}
	if next := w.bounded(int(size)); next != w.base {
		w.setSize(next)
	} else {
		w.endTrial()
	}
}

// endTrial returns to the best window. The next trial is in the other direction, and later each time.
func (w *sendWindow) endTrial() {
	w.shrink = !w.shrink
	w.pause = w.nextPause
	w.nextPause = min(2*w.nextPause, mostPause)
	w.setSize(w.base)
}

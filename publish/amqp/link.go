package amqp

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// link is the connection of one session, as its goroutines share it: each of them may make a call with a time limit,
// learn that the session is over, and give the connection up. It is safe for concurrent use.
type link struct {
	opened
	progress

	// ended is closed once by end: sender and jobs stop.
	ended   chan struct{}
	endOnce sync.Once
	// lost receives the reason why the session gives up the connection.
	lost chan error
	// answered receives one value at the broker's first answer to a message; heard is then true.
	answered chan struct{}
	heard    atomic.Bool
	// closing counts the channels that are being closed.
	closing sync.WaitGroup
}

// newLink takes over a new connection.
func newLink(o opened, sendTimeout time.Duration) *link {
	return &link{
		opened: o, progress: progress{sendTimeout: sendTimeout},
		ended: make(chan struct{}), lost: make(chan error, 1), answered: make(chan struct{}, 1),
	}
}

// end stops sender and jobs.
func (c *link) end() { c.endOnce.Do(func() { close(c.ended) }) }

func (c *link) over() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// lose gives up a connection that is still open. Only the first reason counts.
func (c *link) lose(err error) {
	select {
	case c.lost <- err:
	default:
	}
}

// disconnect closes the connection, politely if asked, within a moment. Closing the socket ends calls that hang in the
// library.
func (c *link) disconnect(politely bool) {
	const timeout = 200 * time.Millisecond
	done := make(chan struct{})
	if !politely {
		_ = c.socket.Close()
	}
	go func() {
		defer close(done)
		_ = c.connection.Close()
	}()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
	_ = c.socket.Close()
	<-done
}

// closeChannel closes an unused channel in the background.
func (c *link) closeChannel(channel *amqp091.Channel) {
	c.closing.Go(func() { _ = channel.Close() })
}

// tellFirstAnswer reports the broker's first answer to a message.
func (c *link) tellFirstAnswer() {
	if c.heard.CompareAndSwap(false, true) {
		c.answered <- struct{}{}
	}
}

// limited bounds a call to the broker for which the library would wait without limit, on the clock: it stops while the
// broker blocks the connection, maybe shortly before the end. The call may be behind a large message.
func (c *link) limited(what string, call func() error) error {
	began, most := c.clock.now(), c.silence()
	returned := make(chan struct{})
	defer close(returned)
	go func() {
		for c.clock.now()-began < most {
			select {
			case <-returned:
				return
			case <-time.After(max(min(c.sendTimeout/8, time.Second), scanEvery)):
				most = max(most, c.silence())
			}
		}
		c.lose(fmt.Errorf("%s: no answer within %v", what, most))
	}()
	return call()
}

// slowest is the rate, in bytes a second, with which a large message may travel. Buffers on the way take it at once.
const slowest = 64 << 10

// progress tells how far the broker has come. All messages go through one stream, so the answer to one shows that the
// broker has all that was sent before. The times are on the clock of the connection, in nanoseconds. Only the reaper
// writes.
type progress struct {
	// sendTimeout bounds the wait for an answer, from the moment when the broker has the message.
	sendTimeout time.Duration
	lastAnswer  atomic.Int64 // when the broker last answered a message
	reached     atomic.Int64 // when the newest message with an answer was sent
	largest     atomic.Int64 // bytes of the largest unanswered message
}

// wait is the wait for the answer to a message.
type wait struct {
	since   time.Duration // when it was sent; or, if it has arrived, when that was found out
	arrived bool
}

// note records an answer to a message that was sent at began.
func (p *progress) note(began, now time.Duration) {
	p.lastAnswer.Store(int64(now))
	p.reached.Store(max(p.reached.Load(), int64(began)))
}

// silence is how long the broker may answer nothing.
func (p *progress) silence() time.Duration {
	return p.sendTimeout + time.Duration(p.largest.Load())*time.Second/slowest
}

// late reports whether a wait takes too long: the send timeout after the broker must have it. Until somebody knows
// that, the broker must answer other messages.
func (p *progress) late(w *wait, now time.Duration) bool {
	if !w.arrived && p.reached.Load() > int64(w.since) {
		w.arrived, w.since = true, now
	}
	if w.arrived {
		return now-w.since >= p.sendTimeout
	}
	return now-max(w.since, time.Duration(p.lastAnswer.Load())) >= p.silence()
}

// clock measures the time in which the broker could have answered: it stops while the broker blocks the connection. It
// is safe for concurrent use.
type clock struct {
	mu      sync.Mutex
	start   time.Time
	stopped time.Time     // zero: it runs
	idle    time.Duration // how long it was stopped
}

func newClock() *clock { return &clock{start: time.Now()} }

// now returns the measured time.
func (c *clock) now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.stopped
	if at.IsZero() {
		at = time.Now()
	}
	return at.Sub(c.start) - c.idle
}

func (c *clock) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped.IsZero() {
		c.stopped = time.Now()
	}
}

func (c *clock) resume() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopped.IsZero() {
		c.idle += time.Since(c.stopped)
		c.stopped = time.Time{}
	}
}

func (c *clock) running() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stopped.IsZero()
}

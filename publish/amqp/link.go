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
	// sendTimeout bounds each call, on the clock of the connection.
	sendTimeout time.Duration

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
		opened: o, sendTimeout: sendTimeout,
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

// noAnswer is why a session gives up a connection that is still open.
type noAnswer struct{ cause error }

func (e *noAnswer) Error() string { return e.cause.Error() }
func (e *noAnswer) Unwrap() error { return e.cause }

// lose gives up the connection. Only the first reason counts.
func (c *link) lose(err error) {
	select {
	case c.lost <- &noAnswer{err}:
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

// limited bounds a call to the broker for which the library would wait without limit.
func (c *link) limited(what string, call func() error) error {
	l := c.newLimit(what, func() int64 { return 0 })
	l.start()
	defer l.stop()
	return call()
}

// newSendLimit bounds the sending of messages. A large message may take long, so only the time without a written byte
// counts.
func (c *link) newSendLimit() *limit { return c.newLimit("send messages", c.socket.written.Load) }

// limit gives up the connection if it runs, and progress stays the same, for sendTimeout. It can start again.
type limit struct {
	link     *link
	what     string
	progress func() int64

	mu    sync.Mutex
	runs  bool
	last  int64
	end   time.Duration
	timer *time.Timer
}

func (c *link) newLimit(what string, progress func() int64) *limit {
	return &limit{link: c, what: what, progress: progress}
}

func (l *limit) start() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs, l.last, l.end = true, l.progress(), l.link.clock.now()+l.link.sendTimeout
	if l.timer == nil {
		l.timer = time.AfterFunc(l.link.sendTimeout, l.check)
	} else {
		l.timer.Reset(l.link.sendTimeout)
	}
}

func (l *limit) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs = false
	l.timer.Stop()
}

func (l *limit) check() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.link.clock.now()
	if p := l.progress(); p != l.last {
		l.last, l.end = p, now+l.link.sendTimeout
	}
	switch {
	case !l.runs:
	case now < l.end: // the clock stops while the broker blocks the connection, maybe shortly before the end
		l.timer.Reset(max(l.end-now, scanEvery))
	default:
		l.link.lose(fmt.Errorf("%s: no answer within %v", l.what, l.link.sendTimeout))
	}
}

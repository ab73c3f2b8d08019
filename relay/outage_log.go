package relay

import (
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// outageLog logs an outage when it begins, each of its errors once a minute, and its end: it must not fill the log.
type outageLog struct {
	log *slog.Logger
	mu  struct {
		sync.Mutex
		message string
		logged  map[string]time.Time // when each message was, without its digits
		newest  time.Time            // of them
		since   time.Time
	}
}

const (
	logAgain   = time.Minute
	mostErrors = 32
)

// withoutDigits is what stays of a message from try to try: the port of a connection does not.
func withoutDigits(message string) string {
	return strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' {
			return -1
		}
		return r
	}, message)
}

func newOutageLog(log *slog.Logger) *outageLog { return &outageLog{log: log} }

func (e *outageLog) report(name event.Name, what string, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	if e.mu.since.IsZero() {
		e.mu.since = now
	}
	message := what + ": " + err.Error()
	key := withoutDigits(message)
	if now.Sub(e.mu.logged[key]) < logAgain || now.Sub(e.mu.newest) < time.Second {
		return
	}
	if e.mu.logged == nil || len(e.mu.logged) >= mostErrors {
		e.mu.logged = make(map[string]time.Time)
	}
	e.mu.message, e.mu.newest, e.mu.logged[key] = message, now, now
	args := []any{"error", err, "for", now.Sub(e.mu.since).Round(time.Second)}
	if hint := problem.Hint(err); hint != "" {
		args = append(args, "hint", hint)
	}
	e.log.Warn(what, append([]any{"event", name}, args...)...)
}

func (e *outageLog) over(name event.Name, what string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.since.IsZero() {
		return
	}
	e.log.Info(what, "event", name, "after", time.Since(e.mu.since).Round(time.Millisecond))
	e.mu.message, e.mu.logged, e.mu.newest, e.mu.since = "", nil, time.Time{}, time.Time{}
}

// current is the trouble under way, or "".
func (e *outageLog) current() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.message
}

// heartbeat tells whether an actor's loop still turns. The actor writes, health reads.
type heartbeat struct{ last atomic.Int64 }

// heartbeatEvery is the least that a healthy loop beats: twice before it is called slow.
const heartbeatEvery = slowAfter / 2

func newHeartbeat() *heartbeat {
	h := &heartbeat{}
	h.beat()
	return h
}

func (h *heartbeat) beat() { h.last.Store(time.Now().UnixNano()) }

// beatFor beats ahead, for a step that is bounded but may take that long.
func (h *heartbeat) beatFor(d time.Duration) { h.last.Store(time.Now().Add(d).UnixNano()) }

func (h *heartbeat) age() time.Duration { return time.Duration(time.Now().UnixNano() - h.last.Load()) }

package relay

import (
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// outageLog logs the start and the end of an outage, and each error at most once a minute.
type outageLog struct {
	log *slog.Logger
	mu  struct {
		sync.Mutex
		message string
		logged  map[string]time.Time // when each message was logged; keys have no digits
		newest  time.Time            // the newest of these times
		since   time.Time
	}
}

const (
	logAgain   = time.Minute
	mostErrors = 32
)

// withoutDigits makes the errors of several tries equal: each try has another local port.
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
	text := pgdial.Text(err)
	message := what + ": " + text
	key := withoutDigits(message)
	if now.Sub(e.mu.logged[key]) < logAgain || now.Sub(e.mu.newest) < time.Second {
		return
	}
	if e.mu.logged == nil || len(e.mu.logged) >= mostErrors {
		e.mu.logged = make(map[string]time.Time)
	}
	e.mu.message, e.mu.newest, e.mu.logged[key] = message, now, now
	args := []any{"error", text, "for", now.Sub(e.mu.since).Round(time.Second)}
	if hint := orElse(problem.Hint(err), pgdial.Hint(err)); hint != "" {
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

// current returns the last error of the current outage, or "".
func (e *outageLog) current() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.message
}

// heartbeat shows whether an actor's loop makes progress. The actor writes it, health reads it.
type heartbeat struct{ last atomic.Int64 }

// heartbeatEvery is the longest pause of a healthy loop: two beats fit into slowAfter.
const heartbeatEvery = slowAfter / 2

func newHeartbeat() *heartbeat {
	h := &heartbeat{}
	h.beat()
	return h
}

func (h *heartbeat) beat() { h.last.Store(time.Now().UnixNano()) }

// beatFor beats in advance, for a step with a known bound.
func (h *heartbeat) beatFor(d time.Duration) { h.last.Store(time.Now().Add(d).UnixNano()) }

func (h *heartbeat) age() time.Duration { return time.Duration(time.Now().UnixNano() - h.last.Load()) }

package relay

import (
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// episode logs a trouble once when it begins, once a minute for each nature that it
// takes, and once when it is over: an outage must not fill the log.
type episode struct {
	log *slog.Logger
	mu  struct {
		sync.Mutex
		message string
		natures map[string]time.Time // when each was said
		said    time.Time
		since   time.Time
	}
}

const (
	sayAgain    = time.Minute
	mostNatures = 32
)

// nature is what stays of a message from try to try: the port of a connection does not.
func nature(message string) string {
	return strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' {
			return -1
		}
		return r
	}, message)
}

func newEpisode(log *slog.Logger) *episode { return &episode{log: log} }

func (e *episode) report(what string, err error, fields ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	if e.mu.since.IsZero() {
		e.mu.since = now
	}
	message := what + ": " + err.Error()
	is := nature(message)
	if now.Sub(e.mu.natures[is]) < sayAgain || now.Sub(e.mu.said) < time.Second {
		return
	}
	if e.mu.natures == nil || len(e.mu.natures) >= mostNatures {
		e.mu.natures = make(map[string]time.Time)
	}
	e.mu.message, e.mu.said, e.mu.natures[is] = message, now, now
	args := append(fields, "error", err, "for", now.Sub(e.mu.since).Round(time.Second))
	if hint := problem.Hint(err); hint != "" {
		args = append(args, "to_mend_it", hint)
	}
	e.log.Warn(what, args...)
}

func (e *episode) over(what string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.since.IsZero() {
		return
	}
	e.log.Info(what, "after", time.Since(e.mu.since).Round(time.Millisecond))
	e.mu.message, e.mu.natures, e.mu.said, e.mu.since = "", nil, time.Time{}, time.Time{}
}

// current is the trouble under way, or "".
func (e *episode) current() string {
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

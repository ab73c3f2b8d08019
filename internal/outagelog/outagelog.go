// Package outagelog logs outages: their start, each new cause, and their end.
package outagelog

import (
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// Log logs each cause of an outage at most once a minute. All methods may be called at the same time.
type Log struct {
	log *slog.Logger
	// explain returns the cause of an error, and a hint or "".
	explain func(error) (cause, hint string)
	mu      struct {
		sync.Mutex
		message string
		hint    string
		logged  map[string]time.Time // when each cause was logged; keys have no digits
		newest  time.Time            // the newest of these times
		since   time.Time
	}
}

const (
	logAgain  = time.Minute
	mostCause = 32
)

// New returns a log without an outage.
func New(log *slog.Logger, explain func(error) (cause, hint string)) *Log {
	return &Log{log: log, explain: explain}
}

// NewPlain is New with the text and the hint of each error.
func NewPlain(log *slog.Logger) *Log {
	return New(log, func(err error) (cause, hint string) { return err.Error(), problem.Hint(err) })
}

// withoutDigits makes the errors of several tries equal: each try has another local port.
func withoutDigits(message string) string {
	return strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' {
			return -1
		}
		return r
	}, message)
}

// Report logs an error of the outage, and begins the outage if there is none.
func (l *Log) Report(name event.Name, what string, err error, more ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.mu.since.IsZero() {
		l.mu.since = now
	}
	cause, hint := l.explain(err)
	message := what + ": " + cause
	key := withoutDigits(message)
	if now.Sub(l.mu.logged[key]) < logAgain || now.Sub(l.mu.newest) < time.Second {
		return
	}
	if l.mu.logged == nil || len(l.mu.logged) >= mostCause {
		l.mu.logged = make(map[string]time.Time)
	}
	l.mu.message, l.mu.hint, l.mu.newest, l.mu.logged[key] = message, hint, now, now
	args := append([]any{"error", cause, "for", now.Sub(l.mu.since).Round(time.Second)}, more...)
	if hint != "" {
		args = append(args, "hint", hint)
	}
	l.log.Warn(what, append([]any{"event", name}, args...)...)
}

// Over ends the outage, and logs that if there was one.
func (l *Log) Over(name event.Name, what string) {
	if lasted := l.End(); lasted > 0 {
		l.log.Info(what, "event", name, "after", lasted)
	}
}

// End ends the outage silently, and returns how long it lasted; 0: there was none.
func (l *Log) End() (lasted time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.since.IsZero() {
		return 0
	}
	lasted = max(time.Since(l.mu.since).Round(time.Millisecond), time.Millisecond)
	l.mu.message, l.mu.hint, l.mu.logged, l.mu.newest, l.mu.since = "", "", nil, time.Time{}, time.Time{}
	return lasted
}

// Current returns the last error of the current outage, or "".
func (l *Log) Current() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.message
}

// Hint returns what a person can do about it, or "".
func (l *Log) Hint() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.hint
}

package store

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Policy is how rejections are retried.
type Policy struct {
	// MaxRetries is how many rejections are followed by another try, unless the message says otherwise.
	MaxRetries  int
	BackoffTime time.Duration
	MaxBackoff  time.Duration
	// DropExpired: a message that has expired is deleted, else it becomes a dead letter.
	DropExpired bool
	// Block: a dead letter holds its ordering key up.
	Block bool
}

// Decide is the one place where a result becomes a retry or a dead letter. Random
// is in [0, 1).
func Decide(r outbox.Result, policy Policy, random float64, now time.Time) outbox.Decision {
	switch r.Outcome {
	case outbox.Confirmed:
		return outbox.Decision{Action: outbox.Delete}
	case outbox.Impossible:
		expired := r.Reason == outbox.ReasonExpired
		if expired && policy.DropExpired {
			return outbox.Decision{Action: outbox.Delete, Reason: r.Reason}
		}
		return outbox.Decision{Action: outbox.DeadLetter, Reason: r.Reason, Detail: lastError(r), KeyGoesOn: expired && !policy.Block}
	case outbox.Refused:
		if policy.exhausted(r.Message) {
			return outbox.Decision{Action: outbox.DeadLetter, Reason: outbox.ReasonRetriesExceeded, Detail: lastError(r)}
		}
		delay := r.RetryIn
		if delay <= 0 {
			delay = policy.delay(r.Message.Attempts, random)
		}
		if left, expires := r.Message.TimeLeft(now); expires { // its key does not wait longer for it
			delay = min(delay, max(left, 0))
		}
		return outbox.Decision{Action: outbox.Retry, Delay: delay, Detail: lastError(r)}
	}
	return outbox.Decision{Action: outbox.Release} // Unknown, NotSent: an outage costs no attempt
}

// exhausted tells whether this refusal of a message was the last.
func (p Policy) exhausted(m *outbox.Message) bool {
	if m.MaxAttempts == nil {
		return m.Attempts >= p.MaxRetries
	}
	return *m.MaxAttempts != 0 && m.NextAttempts() >= *m.MaxAttempts
}

// delay is min(backoff · 2^attempts + random(0, backoff/10), max_backoff), with
// the attempts before this rejection: the first retry comes after one backoff time.
func (p Policy) delay(attempts int, random float64) time.Duration {
	delay := math.Ldexp(float64(p.BackoffTime), attempts) + random*float64(p.BackoffTime)/10
	if delay >= float64(p.MaxBackoff) { // also where it is beyond any time.Duration
		return p.MaxBackoff
	}
	return time.Duration(delay)
}

// lastError is what stands in the table: the code, which scripts can match, and the
// words. It is cut, since it is stored once per row, and holds nothing that a UTF-8
// database cannot store; for others see plain.
func lastError(r outbox.Result) string {
	const most = 1000
	s := string(r.Reason)
	if r.Detail != "" {
		s += ": " + r.Detail
	}
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "?")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

// plain writes characters beyond ASCII as Go does (\u00e9): every encoding has those.
func plain(s string) string { return strings.Trim(strconv.QuoteToASCII(s), `"`) }

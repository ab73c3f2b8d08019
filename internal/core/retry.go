package core

import (
	"math"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Policy says how rejections are retried.
type Policy struct {
	// MaxRetries is how many rejections are retried, or UnlimitedRetries. The max_attempts of a message replaces it.
	MaxRetries  int
	BackoffTime time.Duration
	MaxBackoff  time.Duration
	// DropExpired: expired messages are deleted; otherwise they become dead letters.
	DropExpired bool
	// Block: a dead letter blocks its ordering key.
	Block bool
}

// UnlimitedRetries is the MaxRetries with which no rejection makes a dead letter.
const UnlimitedRetries = -1

// Decide turns a result into a decision; no other code decides about retries and dead letters. Random is in [0, 1).
func Decide(r outbox.Result, policy Policy, random float64, now time.Time) outbox.Decision {
	switch r.Outcome {
	case outbox.Confirmed:
		return outbox.Decision{Action: outbox.Delete}
	case outbox.Impossible:
		expired := r.Reason == outbox.ReasonExpired
		if expired && policy.DropExpired {
			return outbox.Decision{Action: outbox.Delete, Reason: r.Reason}
		}
		return outbox.Decision{
			Action: outbox.DeadLetter, Reason: r.Reason, Detail: lastError(r),
			KeyGoesOn: expired && !policy.Block,
		}
	case outbox.Rejected:
		if policy.exhausted(r.Message) {
			return outbox.Decision{
				Action: outbox.DeadLetter, Reason: outbox.ReasonRetriesExceeded, Detail: lastError(r),
			}
		}
		if r.RetryIn <= 0 {
			r.RetryIn = policy.delay(r.Message.Attempts, random)
		}
		return retry(r, now)
	}
	if r.RetryIn > 0 {
		return retry(r, now)
	}
	return outbox.Decision{Action: outbox.Release} // Unknown, NotSent: an outage costs no attempt
}

func retry(r outbox.Result, now time.Time) outbox.Decision {
	if left, expires := r.Message.TimeLeft(now); expires { // the key does not wait longer than the message lives
		r.RetryIn = min(r.RetryIn, max(left, 0))
	}
	return outbox.Decision{Action: outbox.Retry, Delay: r.RetryIn, Reason: r.Reason, Detail: lastError(r)}
}

// exhausted reports whether this rejection of the message was the last.
func (p Policy) exhausted(m *outbox.Message) bool {
	if m.MaxAttempts == nil {
		return p.MaxRetries != UnlimitedRetries && m.Attempts >= p.MaxRetries
	}
	return *m.MaxAttempts != 0 && m.NextAttempts() >= *m.MaxAttempts
}

// delay returns min(backoff · 2^attempts + random(0, backoff/10), max_backoff). Attempts does not count this rejection,
// so the first retry comes after one backoff time.
func (p Policy) delay(attempts int, random float64) time.Duration {
	delay := math.Ldexp(float64(p.BackoffTime), attempts) + random*float64(p.BackoffTime)/10
	if delay >= float64(p.MaxBackoff) { // also if it overflows time.Duration
		return p.MaxBackoff
	}
	return time.Duration(delay)
}

// lastError returns the text for the table: the code, which scripts can match, and the details. It is cut, and holds
// nothing that a UTF-8 database cannot store; the store handles other encodings.
func lastError(r outbox.Result) string {
	const most = 1000
	s := r.Detail
	if r.Reason != "" {
		s = strings.TrimSuffix(string(r.Reason)+": "+r.Detail, ": ")
	}
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "?")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

package core_test

import (
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/outbox"
)

func policy() core.Policy {
	return core.Policy{MaxRetries: 5, BackoffTime: 120 * time.Second, MaxBackoff: time.Hour}
}

func rejected(reason outbox.Reason, detail string) outbox.Result {
	return outbox.Result{Outcome: outbox.Rejected, Reason: reason, Detail: detail}
}

func retry(delay time.Duration, reason outbox.Reason, detail string) outbox.Decision {
	return outbox.Decision{Action: outbox.Retry, Delay: delay, Reason: reason, Detail: detail}
}

func deadLetter(reason outbox.Reason, detail string) outbox.Decision {
	return outbox.Decision{Action: outbox.DeadLetter, Reason: reason, Detail: detail}
}

func TestEachOutcomeHasItsDecision(t *testing.T) {
	in := func(wait time.Duration, r outbox.Result) outbox.Result { r.RetryIn = wait; return r }
	unroutableLater := in(time.Second, outbox.Result{Outcome: outbox.NotSent, Reason: outbox.ReasonUnroutable})
	tooLarge := outbox.Result{Outcome: outbox.Impossible, Reason: outbox.ReasonTooLarge, Detail: "17 MiB"}
	for _, c := range []struct {
		name     string
		result   outbox.Result
		attempts int
		random   float64
		want     outbox.Decision
	}{
		{"confirmed", outbox.Result{Outcome: outbox.Confirmed}, 5, 0, outbox.Decision{Action: outbox.Delete}},
		{"unknown", outbox.Result{Outcome: outbox.Unknown, Reason: "x", Detail: "y"}, 9, 0, outbox.Decision{Action: outbox.Release}},
		{"not sent", outbox.Result{Outcome: outbox.NotSent}, 9, 0, outbox.Decision{Action: outbox.Release}},
		{"no room", in(time.Second, outbox.Result{Outcome: outbox.NotSent}), 9, 0, retry(time.Second, "", "")},
		{"impossible", tooLarge, 0, 0, deadLetter(outbox.ReasonTooLarge, "too_large: 17 MiB")},
		{"first rejection", rejected(outbox.ReasonNack, ""), 0, 0, retry(120*time.Second, "nack", "nack")},
		{"with jitter", rejected(outbox.ReasonNack, "full"), 0, 0.5, retry(126*time.Second, "nack", "nack: full")},
		{
			"with a time of its own", in(48*time.Hour, rejected(outbox.ReasonHandlerRejected, "")), 2, 0.5,
			retry(48*time.Hour, "handler_rejected", "handler_rejected"),
		},
		{"an outage with a time of its own", unroutableLater, 9, 0.5, retry(time.Second, "unroutable", "unroutable")},
		{"third rejection", rejected(outbox.ReasonUnroutable, ""), 2, 0, retry(480*time.Second, "unroutable", "unroutable")},
		{"bounded", rejected(outbox.ReasonNack, ""), 4, 0.99, retry(1920*time.Second+11880*time.Millisecond, "nack", "nack")},
		{"last rejection", rejected(outbox.ReasonNack, "full"), 5, 0, deadLetter(outbox.ReasonRetriesExceeded, "nack: full")},
	} {
		c.result.Message = &outbox.Message{Row: outbox.Row{Attempts: c.attempts}}
		if got := core.Decide(c.result, policy(), c.random, time.Now()); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// The delay is that of max_backoff long before the number of attempts ends.
func TestUnlimitedRetriesEndNever(t *testing.T) {
	p := policy()
	p.MaxRetries = core.UnlimitedRetries
	for _, attempts := range []int{0, 5, 1001, math.MaxInt32} {
		r := outbox.Result{Message: &outbox.Message{Row: outbox.Row{Attempts: attempts}}, Outcome: outbox.Rejected, Reason: outbox.ReasonNack}
		d := core.Decide(r, p, 0.5, time.Now())
		if d.Action != outbox.Retry || attempts > 5 && d.Delay != p.MaxBackoff || d.Delay <= 0 {
			t.Errorf("after %d attempts: %+v", attempts, d)
		}
		r.Message.MaxAttempts = new(1)
		if d := core.Decide(r, p, 0.5, time.Now()); d.Action != outbox.DeadLetter {
			t.Errorf("with a limit of the row after %d attempts: %+v", attempts, d)
		}
	}
}

// 1 means no retry, 0 no limit.
func TestMaxAttemptsOfARowReplacesThePolicy(t *testing.T) {
	for _, c := range []struct {
		attempts, most int
		want           outbox.Action
	}{
		{0, 1, outbox.DeadLetter},
		{0, 2, outbox.Retry},
		{1, 2, outbox.DeadLetter},
		{4, 2, outbox.DeadLetter},
		{5, 7, outbox.Retry},
		{6, 7, outbox.DeadLetter},
		{5, 0, outbox.Retry},
		{math.MaxInt32, 0, outbox.Retry},
		{32766, 32767, outbox.DeadLetter},
	} {
		m := &outbox.Message{Row: outbox.Row{Attempts: c.attempts, MaxAttempts: &c.most}}
		r := outbox.Result{Message: m, Outcome: outbox.Rejected, Reason: outbox.ReasonNack}
		if d := core.Decide(r, policy(), 0, time.Now()); d.Action != c.want {
			t.Errorf("rejection %d with max_attempts %d: %+v", c.attempts+1, c.most, d)
		}
	}
}

// The key continues at once, unless dead letters block keys. With drop, the row is deleted and only counted.
func TestAnExpiredMessageIsDeadLetteredOrDropped(t *testing.T) {
	r := outbox.Result{Message: &outbox.Message{}, Outcome: outbox.Impossible, Reason: outbox.ReasonExpired, Detail: "d"}
	for _, c := range []struct {
		policy core.Policy
		want   outbox.Decision
	}{
		{core.Policy{}, outbox.Decision{Action: outbox.DeadLetter, Reason: outbox.ReasonExpired, Detail: "expired: d", KeyGoesOn: true}},
		{core.Policy{Block: true}, outbox.Decision{Action: outbox.DeadLetter, Reason: outbox.ReasonExpired, Detail: "expired: d"}},
		{core.Policy{DropExpired: true, Block: true}, outbox.Decision{Action: outbox.Delete, Reason: outbox.ReasonExpired}},
	} {
		if got := core.Decide(r, c.policy, 0, time.Now()); got != c.want {
			t.Errorf("%+v: %+v, want %+v", c.policy, got, c.want)
		}
	}
}

// Later rows of the key do not wait for a retry that would come too late.
func TestARetryIsNotLaterThanTheExpiry(t *testing.T) {
	now := time.Now()
	for left, want := range map[time.Duration]time.Duration{
		time.Minute: time.Minute, -time.Minute: 0, time.Hour: policy().BackoffTime, math.MaxInt64: policy().BackoffTime,
	} {
		r := outbox.Result{Message: &outbox.Message{Deadline: new(now.Add(left))}, Outcome: outbox.Rejected}
		if d := core.Decide(r, policy(), 0, now); d.Action != outbox.Retry || d.Delay != want {
			t.Errorf("%s before it expires: %+v, want %s", left, d, want)
		}
	}
}

func TestRetryDelayStaysWithinItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		backoff := rapid.Int64Range(0, math.MaxInt64).Draw(t, "backoff")
		most := rapid.Int64Range(0, math.MaxInt64).Draw(t, "max_backoff")
		attempts := rapid.IntRange(0, 5000).Draw(t, "attempts")
		random := rapid.Float64Range(0, 0.999999).Draw(t, "random")
		r := outbox.Result{Message: &outbox.Message{Row: outbox.Row{Attempts: attempts}}, Outcome: outbox.Rejected, Reason: outbox.ReasonNack}
		p := core.Policy{MaxRetries: 1 << 20, BackoffTime: time.Duration(backoff), MaxBackoff: time.Duration(most)}
		got := float64(core.Decide(r, p, random, time.Now()).Delay)
		exact := math.Ldexp(float64(backoff), attempts)
		low, high := min(exact, float64(most)), min(exact+float64(backoff)/10, float64(most))
		if got < low*(1-1e-9)-1 || got > high*(1+1e-9)+1 || got > float64(most) {
			t.Fatalf("delay %g, want %g to %g", got, low, high)
		}
	})
}

func TestLastErrorIsCutToAStorableText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		detail := string(rapid.SliceOfN(rapid.Byte(), 0, 30).Draw(t, "bytes")) + rapid.String().Draw(t, "words")
		detail = strings.Repeat(detail, rapid.IntRange(1, 300).Draw(t, "times"))
		r := outbox.Result{Message: &outbox.Message{}, Outcome: outbox.Impossible, Reason: outbox.ReasonTooLarge, Detail: detail}
		got := core.Decide(r, policy(), 0, time.Now()).Detail
		if !utf8.ValidString(got) || strings.ContainsRune(got, 0) || len(got) > 1100 {
			t.Fatalf("%d bytes: %q", len(got), got)
		}
		if !strings.HasPrefix(got, "too_large") {
			t.Fatalf("the code is not at the start: %q", got)
		}
	})
}

func TestOnlyRejectionsAreCharged(t *testing.T) {
	for outcome := outbox.Confirmed; outcome <= outbox.NotSent; outcome++ {
		r := outbox.Result{Message: &outbox.Message{Row: outbox.Row{ID: int64(outcome)}}, Outcome: outcome}
		s := outbox.NewSettlement(r, core.Decide(r, policy(), 0, time.Now()))
		if s.Message != r.Message || s.Rejected != (outcome == outbox.Rejected) {
			t.Errorf("%v: %+v", outcome, s)
		}
	}
}

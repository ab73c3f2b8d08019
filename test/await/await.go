// Package await contains the waits of tests. A wait ends when its condition is met. Its deadline only ends a hang, and
// grows with the slowness of the machine.
package await

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	// hang limits a whole scenario on a quiet, current machine. None takes half of it there, even at full size.
	hang = 5 * time.Minute
	// patience limits the wait for one condition there.
	patience = time.Minute
)

// slowness is measured once in a process, at its start, when the process itself does nothing else.
var slowness = sync.OnceValue(measure)

// Slowness returns how many times slower this machine is than a quiet, current one, at least 1.
func Slowness() float64 { return slowness() }

// reference is the time of measure's work on a quiet, current core.
const reference = 40 * time.Millisecond

// measure times a fixed piece of work on all processors at once, so the load of other programs counts.
func measure() float64 {
	began := time.Now()
	var working sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		working.Go(work)
	}
	working.Wait()
	return max(1, float64(time.Since(began))/float64(reference))
}

func work() {
	x := uint64(88172645463325252)
	for range 1 << 24 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	runtime.KeepAlive(x)
}

// Scaled converts a time on a quiet, current machine to a time on this one.
func Scaled(d time.Duration) time.Duration { return time.Duration(float64(d) * Slowness()) }

// Hang is the longest time of a whole scenario.
func Hang() time.Duration { return Scaled(hang) }

// Context returns a context that ends after Hang, or with the test.
func Context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), Hang())
	t.Cleanup(cancel)
	return ctx
}

// Until waits for a condition and checks it on the test's goroutine: at first every few milliseconds, later more
// seldom, because most conditions ask a server. If the condition stays false, the test fails with what it waited for
// and the final results of the functions saw.
func Until(t testing.TB, what string, condition func() bool, saw ...func() string) {
	t.Helper()
	began := time.Now()
	deadline := time.NewTimer(Scaled(patience))
	defer deadline.Stop()
	next := time.NewTimer(0)
	defer next.Stop()
	for !condition() {
		next.Reset(min(max(time.Since(began)/20, 5*time.Millisecond), 50*time.Millisecond))
		select {
		case <-next.C:
		case <-deadline.C:
			deadline.Reset(remaining(t, what, began, saw))
		}
	}
}

// Receive waits for a value, or until the channel is closed.
func Receive[T any](t testing.TB, what string, from <-chan T, saw ...func() string) T {
	t.Helper()
	began := time.Now()
	deadline := time.NewTimer(Scaled(patience))
	defer deadline.Stop()
	for {
		select {
		case value := <-from:
			return value
		case <-deadline.C:
			deadline.Reset(remaining(t, what, began, saw))
		}
	}
}

// remaining returns how much longer to wait if the machine has become slower since it was measured. Otherwise the test
// fails.
func remaining(t testing.TB, what string, began time.Time, saw []func() string) time.Duration {
	t.Helper()
	if left := time.Duration(measure()*float64(patience)) - time.Since(began); left > 0 {
		return left
	}
	lines := []string{fmt.Sprintf("waited %s for: %s", time.Since(began).Round(time.Millisecond), what)}
	for _, see := range saw {
		lines = append(lines, "saw: "+see())
	}
	t.Fatal(strings.Join(lines, "\n"))
	return 0
}

// Within fails the test if something takes longer than is allowed on a quiet, current machine. It logs the time. It
// measures the slowness again before it fails, because the machine may have become slower.
func Within(t testing.TB, what string, allowed time.Duration, something func()) {
	t.Helper()
	began := time.Now()
	something()
	Judge(t, what, time.Since(began), allowed)
}

// Judge does the same as Within for a time that was measured already.
func Judge(t testing.TB, what string, took, allowed time.Duration) {
	t.Helper()
	took = took.Round(time.Millisecond)
	t.Logf("%s: %s", what, took)
	if took <= Scaled(allowed) {
		return
	}
	if now := measure(); float64(took) > float64(allowed)*max(now, Slowness()) {
		t.Errorf("%s took %s, allowed %s on a machine %.1f times as slow as a quiet one (now %.1f times)",
			what, took, allowed, Slowness(), now)
	}
}

// Busy reports whether this machine is now clearly slower than a quiet, current one. A relay without processor time
// marks messages, so a test cannot tell a wrong mark then.
func Busy() bool { return max(measure(), Slowness()) > 1.5 }

// Tail returns the last lines of a log.
func Tail(log string, lines int) string {
	all := strings.Split(strings.TrimRight(log, "\n"), "\n")
	if len(all) <= lines {
		return strings.Join(all, "\n")
	}
	return fmt.Sprintf("(%d earlier lines left out)\n%s", len(all)-lines, strings.Join(all[len(all)-lines:], "\n"))
}

package tune_test

import (
	"math"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/tune"
)

// Settings of the user stay, the others are changed.
func TestVariablesOfTheUserTakePrecedence(t *testing.T) {
	threads, percent, limit := runtime.GOMAXPROCS(0), debug.SetGCPercent(100), debug.SetMemoryLimit(math.MaxInt64)
	t.Cleanup(func() {
		runtime.GOMAXPROCS(threads)
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	})
	const given = 2
	runtime.GOMAXPROCS(given)
	tune.Runtime(func(string) (string, bool) { return "", true })
	if is := runtime.GOMAXPROCS(0); is != given {
		t.Errorf("%d threads, GOMAXPROCS says %d", is, given)
	}
	tune.Runtime(func(name string) (string, bool) { return "", name == "GOGC" })
	if is := runtime.GOMAXPROCS(0); is != 1 {
		t.Errorf("%d threads, want 1", is)
	}
	if is := debug.SetMemoryLimit(-1); is == math.MaxInt64 {
		t.Error("memory has no limit")
	}
	if is := debug.SetGCPercent(100); is != 100 {
		t.Errorf("garbage is collected at %d %%, GOGC says 100", is)
	}
}

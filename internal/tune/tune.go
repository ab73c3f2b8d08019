// Package tune configures Go's runtime for a process that does little work for each message and then waits.
package tune

import (
	"runtime"
	"runtime/debug"
)

// Runtime must be called at the start of the process. GOMAXPROCS, GOGC and GOMEMLIMIT take precedence. The programs in
// test/bench use the same settings: otherwise their processor times would not be comparable.
func Runtime(lookupEnv func(string) (string, bool)) {
	const (
		// A message passes through five goroutines. Waking another thread for each costs more than their work, and one
		// core can handle several times what a queue accepts.
		threads = 1
		// Live memory is a few megabytes. Collecting each time it doubles would take a seventh of the processor time.
		percent = 300
		// If large messages wait, the collector runs more often.
		softLimit = 64 << 20
	)
	if _, set := lookupEnv("GOMAXPROCS"); !set {
		runtime.GOMAXPROCS(threads)
	}
	if _, set := lookupEnv("GOGC"); !set {
		debug.SetGCPercent(percent)
	}
	if _, set := lookupEnv("GOMEMLIMIT"); !set {
		debug.SetMemoryLimit(softLimit)
	}
}

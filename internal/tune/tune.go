// Package tune fits Go's runtime to a process that does a little for each message and then waits.
package tune

import (
	"runtime"
	"runtime/debug"
)

// Runtime is for the beginning of a process. GOMAXPROCS, GOGC and GOMEMLIMIT go before. The programs that the relay is
// measured against have the same, or a comparison of processor time would compare the collector's settings.
func Runtime(lookupEnv func(string) (string, bool)) {
	const (
		// A message passes through five goroutines. To wake a second thread for each costs
		// more than they do, and one core is enough for several times what a queue takes.
		threads = 1
		// What lives is a few megabytes; to collect the garbage whenever that has doubled
		// takes a seventh of the processor time.
		percent = 300
		// Where great messages wait, memory is collected more eagerly.
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

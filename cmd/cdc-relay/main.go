// Command cdc-relay brings the rows of a Postgres outbox table to RabbitMQ.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
)

func main() {
	// Two, so that a second signal is kept while the first is being handled.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	p := process{
		args:      os.Args,
		stdin:     os.Stdin,
		stdout:    os.Stdout,
		stderr:    os.Stderr,
		lookupEnv: os.LookupEnv,
		signals:   signals,
	}
	tuneRuntime(os.LookupEnv)
	os.Exit(p.run(context.Background()))
}

// tuneRuntime fits Go's runtime to a process that does a little for each message and
// then waits. GOMAXPROCS, GOGC and GOMEMLIMIT go before.
func tuneRuntime(lookupEnv func(string) (string, bool)) {
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

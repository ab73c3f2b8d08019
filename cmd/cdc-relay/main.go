// Command cdc-relay brings the rows of a Postgres outbox table to RabbitMQ.
package main

import (
	"context"
	"os"
	"os/signal"
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
	tuneGarbageCollection(os.LookupEnv)
	os.Exit(p.run(context.Background()))
}

// tuneGarbageCollection lets the heap grow to four times of what lives: that is a few
// megabytes, and collecting it at the usual rate takes a seventh of the relay's
// processor time. Where great messages wait, memory is collected more eagerly. GOGC
// and GOMEMLIMIT go before.
func tuneGarbageCollection(lookupEnv func(string) (string, bool)) {
	const percent, softLimit = 300, 96 << 20
	if _, set := lookupEnv("GOGC"); !set {
		debug.SetGCPercent(percent)
	}
	if _, set := lookupEnv("GOMEMLIMIT"); !set {
		debug.SetMemoryLimit(softLimit)
	}
}

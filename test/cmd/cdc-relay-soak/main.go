// Command cdc-relay-soak checks the promises of docs/guarantees.md: it writes and consumes messages, causes faults, and
// checks the history.
//
// It is a separate program and not a command of cdc-relay, because it starts, stops and kills servers, drops slots and
// ends sessions. A production program should not contain that.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	// Two, so that a second signal is not lost while the first is handled.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	p := process{args: os.Args, stdout: os.Stdout, stderr: os.Stderr, signals: signals}
	os.Exit(p.run(context.Background()))
}

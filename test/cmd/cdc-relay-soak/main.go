// Command cdc-relay-soak proves the promises of docs/guarantees.md: it writes, consumes, breaks what can break, and
// checks the history of all that.
//
// It is a program of its own, and not a command of cdc-relay, because it starts, stops and kills servers, drops slots
// and ends sessions: the program that runs in production carries none of that.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	// Two, so that a second signal is kept while the first is being handled.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	p := process{args: os.Args, stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, signals: signals}
	os.Exit(p.run(context.Background()))
}

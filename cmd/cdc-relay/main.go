// Command cdc-relay publishes the rows of a Postgres outbox table to RabbitMQ.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/terminal"
	"github.com/cdc-relay/cdc-relay/internal/tune"
)

func main() {
	// Two, so that a second signal is not lost while the first is handled.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // it is ignored under nohup
		signal.Notify(signals, syscall.SIGHUP)
	}
	p := process{
		args:      os.Args,
		terminal:  terminal.New(os.Stdin, os.Stdout, os.Stderr, os.Getenv("NO_COLOR") != ""), // see no-color.org
		lookupEnv: os.LookupEnv,
		environ:   os.Environ,
		signals:   signals,
	}
	log.SetOutput(p.terminal.Err) // net/http and other libraries log there
	tune.Runtime(os.LookupEnv)
	os.Exit(p.run(context.Background()))
}

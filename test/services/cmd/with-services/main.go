// Command with-services runs a command with a Postgres and a RabbitMQ server for it.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/cdc-relay/cdc-relay/test/services"
)

const usage = `usage: with-services [--signal-leader] [--] COMMAND [ARGUMENT…]

Provides Postgres and RabbitMQ, runs COMMAND with their addresses in CDC_RELAY_DATABASE_URL and CDC_RELAY_AMQP_URL,
stops what it started, and exits with COMMAND's code. The servers are those that these two variables name already, else
containers, else private servers from this machine's binaries; CDC_RELAY_SERVICES=environment|containers|local picks
one.

Signals go to all processes of COMMAND, or with --signal-leader to COMMAND alone.
`

func main() {
	args := os.Args[1:]
	if len(args) > 0 && (args[0] == "-h" || args[0] == "--help") {
		fmt.Print(usage)
		return
	}
	var opts services.Options
	if len(args) > 0 && args[0] == "--signal-leader" {
		opts.SignalLeader = true
		args = args[1:]
	}
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	code, err := services.Run(context.Background(), opts, args[0], args[1:]...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "with-services:", err)
	}
	os.Exit(code)
}

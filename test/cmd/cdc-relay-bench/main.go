// Command cdc-relay-bench measures cdc-relay and its limits; see docs/performance.md.
//
// It is a separate program and not a command of cdc-relay, because it starts servers and creates and drops databases.
// A production program should not contain that.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/cdc-relay/cdc-relay/internal/tune"
	"github.com/cdc-relay/cdc-relay/test/bench"
)

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	code := run(ctx, os.Args, os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run runs one command and returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var err error
	switch first := argument(args, 1); first {
	case "limit": // a process started by this program
		tune.Runtime(os.LookupEnv) // the same settings as the relay
		err = bench.RunLimit(ctx, stdin)
	default:
		err = newApp(stdout, stderr).RunContext(ctx, args)
	}
	var usage *usageError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "cdc-relay-bench: %s\nsee cdc-relay-bench --help\n", err)
		return exitUsage
	}
	fmt.Fprintf(stderr, "cdc-relay-bench: %s\n", redact(err.Error()))
	return exitFailed
}

func argument(args []string, i int) string {
	if i < len(args) {
		return args[i]
	}
	return ""
}

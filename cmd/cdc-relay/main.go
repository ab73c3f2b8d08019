// Command cdc-relay publishes the rows of a Postgres outbox table to RabbitMQ.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
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

// The linker sets them for a release: -ldflags "-X main.version=v1.2.3 -X main.commit=… -X
// main.date=2026-11-23T10:00:00Z".
var version, commit, date string

// build describes this binary. docs/commands.md documents its keys.
type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Date     string `json:"date"` // of the build, or else of the commit; RFC 3339
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func buildInfo() build {
	b := build{
		Version: version, Commit: commit, Date: date, Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	vcs := make(map[string]string)
	for _, s := range info.Settings {
		vcs[s.Key] = s.Value
	}
	if b.Version == "" {
		b.Version = info.Main.Version
	}
	if b.Version == "" {
		b.Version = "(devel)"
	}
	if b.Commit == "" {
		b.Commit = vcs["vcs.revision"]
		if b.Commit != "" && vcs["vcs.modified"] == "true" {
			b.Commit += " (modified)"
		}
	}
	if b.Date == "" {
		b.Date = vcs["vcs.time"]
	}
	b.Commit, b.Date = show.OrElse(b.Commit, "unknown"), show.OrElse(b.Date, "unknown")
	return b
}

func (p *process) writeVersion(b build) {
	fmt.Fprintf(
		p.terminal.Out, "cdc-relay %s\ncommit %s\ndate %s\n%s %s\n", b.Version, b.Commit, b.Date, b.Go, b.Platform,
	)
}

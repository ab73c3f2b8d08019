package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/urfave/cli/v2"
)

// Set by the linker for a release: -ldflags "-X main.version=v1.2.3 -X main.commit=…".
var version, commit string

// build is what is known of this binary.
type build struct{ version, commit string }

func buildInfo() build {
	b := build{version: version, commit: commit}
	info, ok := debug.ReadBuildInfo()
	if ok && b.version == "" {
		b.version = info.Main.Version
	}
	if b.version == "" {
		b.version = "(devel)"
	}
	if ok && b.commit == "" {
		b.commit = vcsRevision(info)
	}
	return b
}

func vcsRevision(info *debug.BuildInfo) string {
	revision, modified := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = " (modified)"
		}
	}
	if revision == "" {
		return "unknown"
	}
	return revision + modified
}

func (p *process) versionCommand() *cli.Command {
	return &cli.Command{
		Name:        "version",
		Usage:       "tell version, commit and Go version",
		UsageText:   "cdc-relay version",
		Description: "Tells which cdc-relay this is.",
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return usagef("%s: unexpected argument %q", c.Command.Name, c.Args().First())
			}
			b := buildInfo()
			fmt.Fprintf(p.stdout, "cdc-relay %s\ncommit %s\n%s %s/%s\n", b.version, b.commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return nil
		},
	}
}

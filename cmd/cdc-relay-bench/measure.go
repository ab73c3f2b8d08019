package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/cdc-relay/cdc-relay/bench"
)

// measure runs the rounds and reports.
func measure(ctx context.Context, o *options, stdout io.Writer) (err error) {
	if o.list {
		for _, one := range o.cases {
			fmt.Fprintf(stdout, "%-16s %s\n", one.Name, one.About)
		}
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "cdc-relay-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	if o.profiles != "" {
		if o.profiles, err = filepath.Abs(o.profiles); err != nil {
			return err
		}
		if err := os.MkdirAll(o.profiles, 0o755); err != nil {
			return err
		}
	}
	screen := newScreen(stdout, len(o.cases)*o.rounds)
	site, err := bench.OpenSite(ctx, bench.SiteConfig{
		Relay: o.relay, RelayArgs: o.relayArgs, Self: self, Folder: folder, Profiles: o.profiles, Settings: o.postgres, Log: screen.note,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, site.Close(context.WithoutCancel(ctx))) }()
	report, err := bench.NewReport(ctx, site, o.settings)
	if err != nil {
		return err
	}
	err = rounds(ctx, o, site, report, screen)
	screen.end()
	return errors.Join(err, conclude(o, report, stdout))
}

// rounds lets the cases take turns.
func rounds(ctx context.Context, o *options, site *bench.Site, report *bench.Report, screen *screen) error {
	for round := 1; round <= o.rounds; round++ {
		for _, one := range o.cases {
			screen.begin(fmt.Sprintf("round %d of %d, %s", round, o.rounds, one.Name))
			began := time.Now()
			result, err := one.Run(ctx, site, o.settings, round, o.timeout, screen.progress)
			if err != nil {
				return err
			}
			report.Add(*result)
			screen.done(bench.Line(*result), time.Since(began))
		}
	}
	return nil
}

// conclude prints what there is, also where the rounds were cut short.
func conclude(o *options, report *bench.Report, stdout io.Writer) error {
	if len(report.Results) == 0 {
		return nil
	}
	fmt.Fprintln(stdout)
	err := report.WriteText(stdout, o.cases)
	if o.json == "" {
		return err
	}
	file, failed := os.Create(o.json)
	if failed != nil {
		return errors.Join(err, failed)
	}
	return errors.Join(err, report.WriteJSON(file), file.Close())
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/test/bench"
)

// measure runs the rounds and prints the report.
func measure(ctx context.Context, o *options, stdout io.Writer) (err error) {
	if o.list {
		for _, one := range o.cases {
			fmt.Fprintf(stdout, "%-17s %s\n", one.Name, one.About)
		}
		return nil
	}
	if len(o.from) > 0 {
		return again(o, stdout)
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
	screen := newScreen(stdout, countRuns(o))
	site, err := bench.OpenSite(ctx, bench.SiteConfig{
		Relay:     o.relay,
		RelayArgs: o.relayArgs,
		Self:      self,
		Folder:    folder,
		Profiles:  o.profiles,
		Settings:  o.postgres,
		Log:       screen.note,
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

func countRuns(o *options) int {
	runs := 0
	for _, one := range o.cases {
		if one.Once {
			runs++
		} else {
			runs += o.rounds
		}
	}
	return runs
}

// rounds runs the cases in turns.
func rounds(ctx context.Context, o *options, site *bench.Site, report *bench.Report, screen *screen) error {
	for round := 1; round <= o.rounds; round++ {
		for _, one := range o.cases {
			if one.Once && round > 1 {
				continue
			}
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

// conclude prints the results so far, also if the rounds were interrupted.
func conclude(o *options, report *bench.Report, stdout io.Writer) error {
	if len(report.Results) == 0 {
		return nil
	}
	fmt.Fprintln(stdout)
	err := report.WriteText(stdout, o.cases)
	if o.charts != "" {
		err = errors.Join(err, report.WriteCharts(o.charts))
	}
	if o.json == "" {
		return err
	}
	file, failed := os.Create(o.json)
	if failed != nil {
		return errors.Join(err, failed)
	}
	return errors.Join(err, report.WriteJSON(file), file.Close())
}

// again prints a report on earlier results. It includes all cases.
func again(o *options, stdout io.Writer) error {
	var report *bench.Report
	for _, file := range o.from {
		one, err := bench.ReadReport(strings.TrimSpace(file))
		if err != nil {
			return err
		}
		if report == nil {
			report = one
			continue
		}
		if err := report.Merge(one); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	o.cases = bench.Cases(report.Settings)
	return conclude(o, report, stdout)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
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
	self, err := os.Executable()
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "cdc-relay-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	screen := &screen{out: stdout}
	site, err := bench.OpenSite(ctx, bench.SiteConfig{
		Relay:     o.relay,
		RelayArgs: o.relayArgs,
		Self:      self,
		Folder:    folder,
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
	return errors.Join(err, conclude(o, report, stdout))
}

// rounds runs the cases in turns.
func rounds(ctx context.Context, o *options, site *bench.Site, report *bench.Report, screen *screen) error {
	for round := 1; round <= o.rounds; round++ {
		for _, one := range o.cases {
			if one.Once && round > 1 {
				continue
			}
			began := time.Now()
			result, err := one.Run(ctx, site, o.settings, round, o.timeout)
			if err != nil {
				return err
			}
			report.Add(*result)
			screen.note(fmt.Sprintf("round %d of %d, %s: %s (%s)", round, o.rounds, one.Name, bench.Line(*result),
				time.Since(began).Round(100*time.Millisecond)))
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
	if o.json == "" {
		return err
	}
	file, failed := os.Create(o.json)
	if failed != nil {
		return errors.Join(err, failed)
	}
	return errors.Join(err, report.WriteJSON(file), file.Close())
}

// screen shows a line for each run. It is safe for concurrent use.
type screen struct {
	mu  sync.Mutex
	out io.Writer
}

func (s *screen) note(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintln(s.out, redact(line))
}

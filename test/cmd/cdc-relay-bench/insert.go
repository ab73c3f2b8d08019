package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/test/bench"
)

const insertDescription = `Inserts the same rows into a bare table and into the outbox, in rounds that take turns, and
prints the processor time that an INSERT costs Postgres: medians, the spread of the rounds, and the ratio to the bare
table. Two connections write, ten INSERTs in a transaction, sent in one go. Postgres has to run on this machine;
RabbitMQ is not needed.`

func insertCommand(stdout io.Writer) *cli.Command {
	return &cli.Command{
		Name:        "insert",
		Usage:       "measures what an INSERT costs Postgres",
		Description: insertDescription,
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "rounds", Value: 7, Usage: "how often each table is measured"},
			&cli.IntFlag{Name: "inserts", Value: 20_000, Usage: "how many rows a table gets in each round"},
			&cli.DurationFlag{Name: "timeout", Value: 2 * time.Minute, Usage: "the limit for the whole measurement"},
			&cli.StringSliceFlag{
				Name:  "postgres",
				Usage: "`NAME=VALUE`: a setting of the private Postgres; may be given again",
			},
		},
		OnUsageError: func(_ *cli.Context, err error, _ bool) error { return usagef("%s", err) },
		Action:       func(c *cli.Context) error { return measureInserts(c, stdout) },
	}
}

func measureInserts(c *cli.Context, stdout io.Writer) error {
	config := bench.InsertConfig{
		Rounds: c.Int("rounds"), Inserts: c.Int("inserts"), Settings: c.StringSlice("postgres"),
	}
	for _, check := range []struct {
		wrong bool
		text  string
	}{
		{c.Args().Present(), fmt.Sprintf("unexpected %q", c.Args().First())},
		{config.Rounds < 1, "--rounds: want at least 1"},
		{config.Inserts < 1, "--inserts: want at least 1"},
		{c.Duration("timeout") <= 0, "--timeout: want more than 0"},
	} {
		if check.wrong {
			return usagef("%s", check.text)
		}
	}
	timeout := c.Duration("timeout")
	ctx, cancel := context.WithTimeoutCause(c.Context, timeout, fmt.Errorf("not finished within %s", timeout))
	defer cancel()
	config.Log = (&screen{out: stdout}).note
	costs, err := bench.MeasureInserts(ctx, config)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		return err
	}
	return bench.WriteInsertCosts(stdout, costs)
}

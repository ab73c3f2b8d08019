package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"
)

func (p *process) drainCommand() *cli.Command {
	return &cli.Command{
		Name:      "drain",
		Usage:     "publish what waits now, then exit",
		UsageText: "cdc-relay drain [FLAGS]",
		Description: `Publishes the rows that wait in the outbox and are due, and leaves with 0 when the broker
has them: for cron, tests, and the last step before "teardown". It needs neither slot nor
publication. What the broker refuses is left for a later retry, or dead-lettered after
--max-retries. It leaves with 1 if rows that may leave are left: another session has them.

EXAMPLES

  cdc-relay drain --config /etc/cdc-relay.yaml
  cdc-relay drain --publisher stdout > messages.jsonl`,
		Flags:  relayFlags(),
		Action: p.drain,
	}
}

func (p *process) drain(c *cli.Context) error {
	cfg, err := p.relayConfig(c)
	if err != nil {
		return err
	}
	s, err := p.newService(c.Context, cfg)
	if err != nil {
		return err
	}
	notifying, stop := context.WithCancel(context.WithoutCancel(c.Context))
	defer stop()
	notified := make(chan error, 1)
	go func() { notified <- s.notify(notifying) }()
	err = s.relay.Drain(c.Context)
	stop()
	err = errors.Join(err, <-notified)
	s.endTrace(c.Context)
	if s.statsd != nil {
		s.statsd.Send(context.WithoutCancel(c.Context)) // once, at the end
	}
	if err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	return nil
}

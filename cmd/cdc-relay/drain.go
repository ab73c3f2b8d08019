package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
)

func (p *process) drainCommand() *cli.Command {
	return &cli.Command{
		Name:      "drain",
		Usage:     "publish what waits now, then exit",
		UsageText: "cdc-relay drain [FLAGS]",
		Description: `Publishes the due rows of the outbox, and exits with 0 when RabbitMQ has confirmed them.
Use it in cron, in tests, and before "teardown". It needs no slot and no publication.
Rejected messages stay for a later retry, or are dead-lettered after --max-retries. It exits
with 1 and says why if due rows are left, such as when another session has locked them, or
RabbitMQ or the handler answers nothing within --send-timeout.

EXAMPLES

  cdc-relay drain --config /etc/cdc-relay/config.yaml
  cdc-relay drain --publisher stdout > messages.jsonl`,
		Flags:  relayFlags("json"),
		Action: p.drain,
	}
}

// drainView is the JSON output of drain. The table format prints only the log.
type drainView struct {
	Published          int64  `json:"published"`
	PossibleDuplicates int64  `json:"possible_duplicates"` // how many of the published ones
	Rejected           int64  `json:"rejected"`
	DeadLettered       int64  `json:"dead_lettered"`
	Error              string `json:"error,omitempty"`
}

func (p *process) drain(c *cli.Context) error {
	cfg, err := p.relayConfig(c)
	if err != nil {
		return err
	}
	if cfg.json && cfg.publisher == "stdout" {
		return usagef("--publisher stdout writes messages to the standard output: leave out --json")
	}
	return p.ended("drain", cfg, p.drainWith(c, cfg))
}

func (p *process) drainWith(c *cli.Context, cfg *config) error {
	s, err := p.newService(c.Context, cfg)
	if err != nil {
		return err
	}
	s.logStart("drain", cfg)
	notifying, stop := context.WithCancel(context.WithoutCancel(c.Context))
	defer stop()
	notified := make(chan error, 1)
	go func() { notified <- s.notify(notifying) }()
	err = s.relay.Drain(c.Context)
	if errors.Is(err, context.Canceled) && c.Context.Err() != nil {
		err = failure.WithHint(
			errors.New("stopped: the other rows wait in the table"),
			"cdc-relay drain"+cfg.tableFlag()+"  # continues",
		)
	}
	stop()
	err = errors.Join(err, waitForEnd(notifying, endGrace, func() error { return <-notified }))
	s.endTrace(c.Context)
	if s.statsd != nil {
		s.statsd.Send() // once, after the drain
	}
	if cfg.json {
		err = errors.Join(err, p.writeDrained(s, err))
	}
	return err
}

func (p *process) writeDrained(s *reportingRelay, failed error) error {
	families, err := s.registry.Gather()
	if err != nil {
		return fmt.Errorf("read the counters: %w", err)
	}
	count := func(name string) (sum int64) {
		for _, family := range families {
			for _, metric := range family.GetMetric() {
				if family.GetName() == "cdc_relay_messages_"+name+"_total" {
					sum += int64(metric.GetCounter().GetValue())
				}
			}
		}
		return sum
	}
	view := drainView{
		Published: count("published"), PossibleDuplicates: count("possible_duplicates"),
		Rejected: count("refused"), DeadLettered: count("dead_lettered"),
	}
	if failed != nil {
		view.Error = show.OneLine(pgdial.Text(failed))
	}
	return p.terminal.JSON(view)
}

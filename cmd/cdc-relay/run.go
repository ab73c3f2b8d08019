package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/internal/notice"
	"github.com/cdc-relay/cdc-relay/internal/statsd"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/relay"
	"github.com/cdc-relay/cdc-relay/tracing"
)

// relayFlags are what run and drain have in common.
func relayFlags(more ...string) []cli.Flag {
	names := []string{
		"database-url", "amqp-url", "config", "table", "slot", "publication", "shard", "mode",
		"publisher", "exchange", "header-columns", "ordering-key-header", "batch-size", "max-in-flight", "poll-interval",
		"send-timeout", "shutdown-timeout", "max-retries", "backoff-time", "max-backoff",
		"stale-timeout", "outage-cooldown", "on-dead-letter", "on-expired", "dead-letter-exchange",
		"statsd-addr", "statsd-prefix", "statsd-tags", "log-level", "log-format",
	}
	return flags(append(names, more...)...)
}

func (p *process) runCommand() *cli.Command {
	return &cli.Command{
		Name:      "run",
		Usage:     "the service: publish what is inserted, until stopped",
		UsageText: "cdc-relay run [FLAGS]",
		Description: `Publishes each committed row of the outbox and deletes it once the broker has confirmed
it. Any number may run: one streams, the others stand by and take over. Postgres or
RabbitMQ may be away, also at the start: it waits for them and loses nothing.

Ctrl-C, SIGTERM or SIGHUP: it takes no more, finishes what is in flight (--shutdown-timeout), and
leaves with 0. After that nothing is published twice. A second signal does not wait.

EXAMPLES

  cdc-relay run --database-url postgres://relay@localhost/shop --amqp-url amqp://localhost
  cdc-relay run --config /etc/cdc-relay.yaml
  cdc-relay run --publisher stdout            # see the messages without a broker
  curl localhost:9464/readyz                  # is it well? /metrics: numbers`,
		Flags:  relayFlags("dead-letter-retention", "http-addr", "liveness-file"),
		Action: p.serve,
	}
}

// service is one relay with what it reports to.
type service struct {
	relay    *relay.Relay
	registry *prometheus.Registry
	log      *slog.Logger
	statsd   *statsd.Bridge  // nil where it is not wanted
	notices  *notice.Notices // likewise
	tracer   *tracing.Tracer // likewise
}

// relayConfig is what run and drain go by.
func (p *process) relayConfig(c *cli.Context) (*config, error) {
	cfg, err := p.resolve(c)
	if err != nil {
		return nil, err
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.publisher == "amqp" {
		return cfg, cfg.needAMQP()
	}
	if cfg.signalling.deadLetterExchange != "" {
		return nil, usagef("--dead-letter-exchange needs --publisher amqp")
	}
	return cfg, nil
}

// newService makes a relay, which is to be run or drained. A reader of its output that goes away is an error of
// the write from then on, with which it stops in order; it would end the process otherwise.
func (p *process) newService(ctx context.Context, cfg *config) (*service, error) {
	signal.Ignore(syscall.SIGPIPE)
	log := p.logger(cfg)
	publisher, err := p.newPublisher(cfg, log)
	if err != nil {
		return nil, err
	}
	s := &service{registry: newRegistry(), log: log}
	if err := s.tellDeadLetters(cfg); err != nil {
		return nil, err
	}
	if err := s.trace(ctx, cfg); err != nil {
		return nil, err
	}
	if err := s.newStatsd(cfg.signalling.statsd); err != nil {
		return nil, err
	}
	s.relay, err = relay.New(cfg.relay, publisher, log, s.registry)
	return s, err
}

func (p *process) newPublisher(cfg *config, log *slog.Logger) (publish.Publisher, error) {
	if cfg.publisher == "stdout" {
		if closedOutput(p.stdout) {
			return nil, usagef("--publisher stdout: the standard output is closed, so nobody would read the messages")
		}
		return publish.NewStdout(publish.StdoutConfig{Writer: p.stdout, DefaultExchange: cfg.exchange}), nil
	}
	return newAMQP(cfg, cfg.relay.MaxInFlight, log)
}

// closedOutput: for a standard output that is closed, Go opens /dev/null, to read as well; a shell's >/dev/null cannot be read.
func closedOutput(stdout io.Writer) bool {
	file, isFile := stdout.(*os.File)
	if !isFile {
		return false
	}
	is, err := file.Stat()
	null, errNull := os.Stat(os.DevNull)
	if err != nil || errNull != nil || !os.SameFile(is, null) {
		return err != nil
	}
	_, err = file.Read(make([]byte, 1))
	return errors.Is(err, io.EOF)
}

func newAMQP(cfg *config, maxInFlight int, log *slog.Logger) (*publish.AMQP, error) {
	publisher, err := publish.NewAMQP(publish.AMQPConfig{
		URL:             cfg.amqpURL,
		DefaultExchange: cfg.exchange,
		MaxInFlight:     maxInFlight,
		SendTimeout:     cfg.relay.SendTimeout,
		OutageCooldown:  cfg.outageCooldown,
		Logger:          log,
	})
	if err != nil {
		return nil, usagef("--amqp-url: %s", err)
	}
	return publisher, nil
}

// serve runs the actors of the service. They stop in this order: the relay, which
// drains, then those that tell of it meanwhile: the liveness file, the HTTP server and
// what sends the metrics.
func (p *process) serve(c *cli.Context) error {
	cfg, err := p.relayConfig(c)
	if err != nil {
		return err
	}
	listener, err := listen(c.Context, cfg.httpAddr)
	if err != nil {
		return err
	}
	file, err := newLivenessFile(cfg.livenessFile)
	if err != nil {
		return errors.Join(err, closeListener(listener))
	}
	systemd, err := supervised()
	if err != nil {
		return errors.Join(err, closeListener(listener))
	}
	s, err := p.newService(c.Context, cfg)
	if err != nil {
		return errors.Join(err, closeListener(listener))
	}

	reporting, stopReporting := context.WithCancel(context.WithoutCancel(c.Context))
	defer stopReporting()
	actors, reporting := errgroup.WithContext(reporting)
	running, stopRunning := context.WithCancel(c.Context)
	defer stopRunning()
	actors.Go(func() error {
		defer stopReporting()
		return s.relay.Run(running)
	})
	actors.Go(func() error {
		defer stopRunning() // a server that fails ends the relay, drained
		return serveHTTP(reporting, listener, s)
	})
	actors.Go(func() error {
		file.keep(reporting, s.relay, s.log)
		return nil
	})
	actors.Go(func() error {
		systemd.keep(reporting, running, s.relay, s.log)
		return nil
	})
	counting, stopCounting := context.WithCancel(context.WithoutCancel(c.Context))
	actors.Go(func() error {
		defer stopCounting() // notices are counted, too
		return s.notify(reporting)
	})
	actors.Go(func() error {
		<-reporting.Done()
		s.endTrace(reporting)
		return nil
	})
	actors.Go(func() error {
		s.bridge(counting)
		return nil
	})
	if err := actors.Wait(); err != nil {
		return fmt.Errorf("run: %w", err)
	}
	return nil
}

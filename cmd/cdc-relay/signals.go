package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/notice"
	"github.com/cdc-relay/cdc-relay/internal/statsd"
	"github.com/cdc-relay/cdc-relay/tracing"
)

// signalling is where the relay tells of itself beside its own HTTP address.
type signalling struct {
	statsd             statsd.Config // no address: nowhere
	deadLetterExchange string        // empty: no notices
}

func defaultSignalling() signalling {
	return signalling{statsd: statsd.Config{Prefix: "cdc_relay"}}
}

func signalSettings() []*setting {
	return []*setting{
		{
			name: "dead-letter-exchange", value: "NAME", mayBeEmpty: true,
			usage: "Publish a small message without payload to this exchange for each dead letter, at most once. Default: none.",
			set: func(c *config, text string) error {
				if c.signalling.deadLetterExchange = text; len(text) > 255 {
					return fmt.Errorf("want at most 255 bytes, not %d", len(text))
				}
				return nil
			},
		},
		{
			name: "statsd-addr", value: "ADDRESS", mayBeEmpty: true,
			usage: "Send the metrics to DogStatsD every ten seconds: host:port (UDP) or unix:///path. Default: nowhere.",
			set: func(c *config, text string) error {
				if c.signalling.statsd.Addr = text; text == "" {
					return nil
				}
				return statsd.CheckAddr(text)
			},
		},
		{
			name: "statsd-prefix", value: "NAME", byDefault: "cdc_relay", mayBeEmpty: true,
			usage: "Prefix of metric names in DogStatsD, followed by a dot.",
			set: func(c *config, text string) error {
				c.signalling.statsd.Prefix = text
				return statsd.CheckPrefix(text)
			},
		},
		{
			name: "statsd-tags", value: "NAME:VALUE,…", mayBeEmpty: true,
			usage: "Tags for each metric in DogStatsD, such as env:prod,team:shop. Default: none.",
			set: func(c *config, text string) error {
				if c.signalling.statsd.Tags = nil; text == "" {
					return nil
				}
				for tag := range strings.SplitSeq(text, ",") {
					c.signalling.statsd.Tags = append(c.signalling.statsd.Tags, strings.TrimSpace(tag))
				}
				return statsd.CheckTags(c.signalling.statsd.Tags)
			},
		},
	}
}

// tellDeadLetters makes what sends notices of dead letters, where that is wanted, and
// has the relay call it.
func (s *service) tellDeadLetters(cfg *config) error {
	exchange := cfg.signalling.deadLetterExchange
	if exchange == "" {
		return nil
	}
	publisher, err := newAMQP(cfg, notice.MaxInFlight, s.log.With("for", "notices of dead letters"))
	if err != nil {
		return err
	}
	s.notices, err = notice.New(publisher, exchange, cfg.exchange, s.log, s.registry)
	if err != nil {
		return err
	}
	cfg.relay.Hooks.DeadLettered = s.notices.Send
	return nil
}

// notify sends notices of dead letters until ctx is done, where that is wanted.
func (s *service) notify(ctx context.Context) error {
	if s.notices == nil {
		<-ctx.Done()
		return nil
	}
	return s.notices.Run(ctx)
}

// trace makes spans, where the OTEL_* variables ask for them.
func (s *service) trace(ctx context.Context, cfg *config) (err error) {
	s.tracer, err = tracing.FromEnvironment(ctx, tracing.Config{
		Version: buildInfo().Version, DefaultExchange: cfg.exchange, Logger: s.log,
	})
	if err != nil {
		return usagef("%s", err)
	}
	if s.tracer != nil {
		cfg.relay.Tracer = s.tracer
	}
	return nil
}

// lastSpans is how long the export of the last spans may take.
const lastSpans = 5 * time.Second

// endTrace exports the spans that wait.
func (s *service) endTrace(ctx context.Context) {
	if s.tracer == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSpans)
	defer cancel()
	if err := s.tracer.Shutdown(ctx); err != nil {
		s.log.Warn("last spans lost: they could not be exported", "event", event.SpansLost, "error", err)
	}
}

// bridge sends the metrics to DogStatsD until ctx is done, where that is wanted.
func (s *service) bridge(ctx context.Context) {
	if s.statsd != nil {
		s.statsd.Run(ctx)
	}
}

// newStatsd is nil where no address is given.
func (s *service) newStatsd(to statsd.Config) (err error) {
	if to.Addr == "" {
		return nil
	}
	s.statsd, err = statsd.New(to, s.registry, s.log)
	return err
}

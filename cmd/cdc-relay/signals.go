package main

import (
	"context"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/notice"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/statsd"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/tracing"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
)

// signalFlags are the settings of all outputs besides the log and --http-addr.
type signalFlags struct {
	statsd         string // the address of DogStatsD with its parameters; empty: not sent
	eventsExchange string // empty: no notices
	events         []string
}

func defaultSignalFlags() signalFlags {
	return signalFlags{events: []string{string(notice.DeadLettered)}}
}

func signalSettings() []setting {
	return []setting{
		settings.MayBeEmpty(settings.Text("events-exchange", "NAME", "",
			"Publish a notice to this exchange for each event of --events. Default: none.",
			func(c *config) *string { return &c.signals.eventsExchange }, checkName)),
		settings.Offering(settings.Parsed("events", "EVENT,…", string(notice.DeadLettered),
			"The events that get a notice: published, rejected, dead_lettered.",
			func(c *config) *[]string { return &c.signals.events }, parseEvents), notice.Kinds()),
		settings.List("log-headers", "NAME,…",
			"Message headers to add to the log lines of rejected and dead-lettered messages. Default: none.",
			func(c *config) *[]string { return &c.relay.LogHeaders }),
		settings.List("metrics-routing-keys", "PATTERN,…",
			"Count messages by these routing keys, such as orders.*,invoices.#. At most 100 values. Default: none.",
			func(c *config) *[]string { return &c.relay.MetricsRoutingKeys }),
		settings.Shared(settings.MayBeEmpty(settings.Text("metrics-header", "NAME", "",
			"Count messages by this message header, such as task; stats, lists and console show it. "+
				"At most 100 values. Default: none.",
			func(c *config) *string { return &c.relay.MetricsHeader }))),
		settings.MayBeEmpty(settings.Text("statsd-addr", "ADDRESS", "",
			"Send metrics to DogStatsD: host:port (UDP) or unix:///path, with a prefix and tags if wanted: "+
				"host:8125?prefix=shop&tags=env:prod,team:shop. Default: nowhere.",
			func(c *config) *string { return &c.signals.statsd }, statsd.Check)),
	}
}

func parseEvents(text string) ([]string, error) {
	events := settings.ListOf(text)
	for _, event := range events {
		if err := settings.OneOf(event, notice.Kinds()...); err != nil {
			return nil, err
		}
	}
	return events, nil
}

// registerNotices connects the notices of events to the relay, if they are wanted.
func (s *reportingRelay) registerNotices(cfg *config) error {
	exchange := cfg.signals.eventsExchange
	if exchange == "" {
		return nil
	}
	publisher, err := newAMQP(cfg, notice.MaxInFlight, s.log.With("for", "notices of events"))
	if err != nil {
		return err
	}
	s.notices, err = notice.New(publisher, exchange, cfg.exchange, s.log, s.registry)
	if err != nil {
		return err
	}
	for _, event := range cfg.signals.events {
		hook := s.notices.Hook(notice.Kind(event))
		switch notice.Kind(event) {
		case notice.Published:
			cfg.relay.Hooks.Published = hook
		case notice.Rejected:
			cfg.relay.Hooks.Rejected = hook
		case notice.DeadLettered:
			cfg.relay.Hooks.DeadLettered = hook
		}
	}
	return nil
}

// notify sends notices of events until ctx is done, if they are wanted.
func (s *reportingRelay) notify(ctx context.Context) error {
	if s.notices == nil {
		<-ctx.Done()
		return nil
	}
	return s.notices.Run(ctx)
}

// trace creates the tracer, if the OTEL_* variables ask for one.
func (s *reportingRelay) trace(ctx context.Context, cfg *config) {
	s.tracer = tracing.FromEnvironment(ctx, tracing.Config{
		Version: buildInfo().Version, DefaultExchange: cfg.exchange, Logger: s.log,
	})
	if s.tracer != nil {
		cfg.relay.Tracer = s.tracer
	}
}

// lastSpans is how long the export of the last spans may take.
const lastSpans = 5 * time.Second

// endTrace exports the remaining spans.
func (s *reportingRelay) endTrace(ctx context.Context) {
	if s.tracer == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSpans)
	defer cancel()
	if err := s.tracer.Shutdown(ctx); err != nil {
		s.log.Warn(
			"last spans lost: the collector did not accept them; messages unaffected", "event", event.SpansLost,
			"error", err,
		)
	}
}

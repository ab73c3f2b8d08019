package main

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/relay"
)

// logStart logs the first line of run and drain: the version, the servers, and the settings that differ from their
// defaults.
func (s *reportingRelay) logStart(command string, cfg *config) {
	b := buildInfo()
	place, user := postgresAddress(cfg.database())
	fields := []any{
		"version", b.Version, "commit", b.Commit, "postgres", place, "role", user, "table", cfg.relay.Table.String(),
	}
	if file, ok := cfg.given["config"]; ok {
		fields = append(fields, "config", file.Text)
	}
	if cfg.publisher == "amqp" {
		fields = append(fields, "rabbitmq", brokerAddress(cfg.rabbitmq))
	}
	if command == "run" && cfg.relay.Mode != "poll" {
		fields = append(fields, "slot", cfg.names().Slot, "publication", cfg.names().Publication)
	}
	byDefault := loggedSettings(defaultConfig())
	for i, setting := range loggedSettings(cfg) {
		if !setting.Equal(byDefault[i]) {
			fields = append(fields, setting)
		}
	}
	s.log.Info("cdc-relay "+command+" started", append([]any{"event", event.RelayStarted}, fields...)...)
}

func maxRetries(n int) slog.Attr {
	const name = "max_retries"
	if n == relay.UnlimitedRetries {
		return slog.String(name, show.Unlimited)
	}
	return slog.Int(name, n)
}

// loggedSettings are the settings of run, except the servers' URLs and the log's own settings.
func loggedSettings(c *config) []slog.Attr {
	r, signals := &c.relay, &c.signals
	return []slog.Attr{
		slog.String("shard", r.Shard.String()),
		slog.Bool("failover_slot", r.FailoverSlot),
		slog.String("mode", string(r.Mode)),
		slog.Bool("setup", c.setup),
		slog.String("owner", r.TableOwner),
		slog.String("publisher", c.publisher),
		slog.String("exchange", c.exchange),
		slog.String("header_columns", strings.Join(r.HeaderColumns, ",")),
		slog.String("ordering_key_header", r.OrderingKeyHeader),
		slog.Int("max_in_flight", r.MaxInFlight),
		slog.Duration("poll_interval", r.PollInterval),
		slog.Duration("send_timeout", r.SendTimeout),
		slog.Duration("shutdown_timeout", r.ShutdownTimeout),
		maxRetries(r.MaxRetries),
		slog.Duration("backoff_time", r.BackoffTime),
		slog.Duration("max_backoff", r.MaxBackoff),
		slog.Duration("dead_letter_retention", r.DeadLetterRetention),
		slog.Duration("keep_published", r.KeepPublished),
		slog.String("log_headers", strings.Join(r.LogHeaders, ",")),
		slog.String("metrics_routing_keys", strings.Join(r.MetricsRoutingKeys, ",")),
		slog.String("metrics_header", r.MetricsHeader),
		slog.String("on_dead_letter", string(r.OnDeadLetter)),
		slog.String("on_expired", string(r.OnExpired)),
		slog.String("events_exchange", signals.eventsExchange),
		slog.String("events", strings.Join(signals.events, ",")),
		slog.String("statsd_addr", signals.statsd),
		slog.String("http_addr", c.httpAddr),
		slog.String("liveness_file", c.livenessFile),
	}
}

// postgresAddress returns host:port/database, with commas between several hosts, and the user that the relay logs in
// as.
func postgresAddress(address pgdial.Address) (place, user string) {
	cfg, err := address.Config()
	if err != nil {
		return "", "" // validated before
	}
	hosts := []string{fmt.Sprintf("%s:%d", cfg.Host, cfg.Port)}
	for _, other := range cfg.Fallbacks { // a host appears twice if TLS is optional
		if host := fmt.Sprintf("%s:%d", other.Host, other.Port); !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	return strings.Join(hosts, ",") + "/" + cfg.Database, cfg.User
}

// brokerAddress returns host:port/vhost, with commas between several hosts.
func brokerAddress(address amqpdial.Address) string {
	nodes, err := address.Nodes()
	if err != nil {
		return "" // validated before
	}
	var hosts []string
	for _, node := range nodes {
		hosts = append(hosts, node.Address())
	}
	return strings.Join(hosts, ",") + "/" + strings.TrimPrefix(nodes[0].URI.Vhost, "/")
}

// ended logs the error that ends run or drain, if the log is JSON. Without that, the error is printed for a person, as
// for other commands.
func (p *process) ended(command string, cfg *config, err error) error {
	switch {
	case err == nil || failure.IsUsage(err):
		return err
	case !p.logsJSON(cfg):
		return fmt.Errorf("%s: %w", command, err)
	}
	args := []any{"error", show.OneLine(pgdial.Text(err))}
	if hint := cfg.database().Hint(err); hint != "" {
		args = append(args, "hint", hint)
	}
	p.logger(cfg).Error(
		"relay failed: exiting; it publishes nothing until it is started again",
		append([]any{"event", event.RelayFailed}, args...)...,
	)
	return failure.Logged(err)
}

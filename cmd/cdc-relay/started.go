package main

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
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
		fields = append(fields, "slot", cfg.relay.Names().Slot, "publication", cfg.relay.Names().Publication)
	}
	for _, setting := range allSettings() {
		if v, given := cfg.given[setting.Name]; given && cfg.logs(setting, v.Text) {
			fields = append(fields, strings.ReplaceAll(setting.Name, "-", "_"), loggedValue(setting, v.Text))
		}
	}
	s.log.Info("cdc-relay "+command+" started", append([]any{"event", event.RelayStarted}, fields...)...)
}

// loggedValue is the value of a setting in JSON: a number, a boolean or a text.
func loggedValue(s setting, text string) any {
	if on, err := strconv.ParseBool(text); s.Placeholder == "" && err == nil { // a switch
		return on
	}
	if n, err := strconv.Atoi(text); s.Placeholder == "NUMBER" && err == nil { // or unlimited
		return n
	}
	return text
}

// logs reports whether the first line of the log has this value of a setting: it belongs to the command, and differs
// from its default. The line has the servers and the names anyway.
func (c *config) logs(s setting, text string) bool {
	elsewhere := []string{
		"config", "database-url", "database-url-file", "amqp-url", "amqp-url-file", "table", "slot", "publication",
		"log-level", "log-format", "json",
	}
	if slices.Contains(elsewhere, s.Name) || !s.Everywhere && !slices.Contains(c.flags, s.Name) {
		return false
	}
	same := defaultConfig()
	return s.Take(same, text) == nil && !reflect.DeepEqual(same, defaultConfig())
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

// withGrants gives the error of a relay whose role lacks a privilege the one command that grants all of them.
func (c *config) withGrants(err error) error {
	var denied *problem.Problem
	unconnected := errors.As(err, new(*pgconn.ConnectError)) && pgcode.Is(err, pgerrcode.InsufficientPrivilege)
	at, wrong := c.database().Config()
	if wrong != nil || !unconnected && !(errors.As(err, &denied) && denied.Denied) {
		return err
	}
	return failure.WithHint(err, c.setupCommandFor(at.User, at))
}

// ended logs the error that ends run or drain, if the log is JSON. Without that, the error is printed for a person, as
// for other commands.
func (p *process) ended(command string, cfg *config, err error) error {
	switch {
	case err == nil || failure.IsUsage(err):
		return err
	}
	err = cfg.withGrants(err)
	if !p.logsJSON(cfg) {
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

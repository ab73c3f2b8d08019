package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/console"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/hosts"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// consoleFlags holds the flags that only the console reads. console.Access explains those about access.
type consoleFlags struct {
	listen       string
	hosts        []string
	tokenFile    string
	loginHeader  string
	allowChanges bool
	// besideDemo: the command demo also serves the console.
	besideDemo bool
}

func consoleSettings() []setting {
	return []setting{
		settings.Text("console-listen", "HOST:PORT", "127.0.0.1:9465",
			"Serve the console at this address. Beyond loopback it needs --token-file.",
			func(c *config) *string { return &c.console.listen }, settings.CheckHostPort),
		settings.Parsed("allowed-hosts", "NAME,…", "",
			"Host names by which browsers open the console, such as console.example.com. Others are "+
				"rejected, except localhost, loopback addresses and the address of --console-listen. Default: none.",
			func(c *config) *[]string { return &c.console.hosts }, hosts.Parse),
		settings.Private(settings.Text("token-file", "FILE", "",
			"A file with the token that the browser asks for as the password. "+
				"The user name goes into the log. Default: none.",
			func(c *config) *string { return &c.console.tokenFile }, notEmpty)),
		settings.Text("login-header", "NAME", "",
			"The header in which a proxy before the console sets the user, such as X-Forwarded-User. "+
				"It needs --token-file with the token that the proxy sends. Default: none.",
			func(c *config) *string { return &c.console.loginHeader }, console.CheckHeaderName),
		settings.Switch("allow-changes", "Let users of the console resend and delete messages.",
			func(c *config) *bool { return &c.console.allowChanges }),
		settings.FlagOnly(settings.Switch("console", "Also serve the console, until the demo ends.",
			func(c *config) *bool { return &c.console.besideDemo })),
	}
}

func notEmpty(text string) error {
	if strings.TrimSpace(text) == "" {
		return errors.New("is empty")
	}
	return nil
}

func (p *process) consoleCommand() *cli.Command {
	picked := flags("console-listen", "allowed-hosts", "token-file", "login-header", "allow-changes",
		"payload", "metrics-header", "on-dead-letter", "max-retries", "poll-interval",
		"mode", "keep-published", "management-url", "database-url", "amqp-url", "table", "owner", "slot",
		"publication", "shard", "exchange", "publisher", "log-level", "log-format", "config")
	return &cli.Command{
		Name:      "console",
		Usage:     "serve pages for the browser: what waits, what fails, one message, check",
		UsageText: "cdc-relay console [FLAGS]",
		Description: `Serves pages for people on call, at http://127.0.0.1:9465. It is a process of its own with a
database role of its own, needs no RabbitMQ except for its page "check", and reads only,
unless --allow-changes is given.

EXAMPLES

  cdc-relay console --config /etc/cdc-relay/config.yaml
  cdc-relay console --console-listen 0.0.0.0:9465 --token-file /run/secrets/console --allow-changes`,
		Flags:  asking(describe(picked, usages{"metrics-header": showHeader})),
		Action: p.console,
	}
}

func (p *process) console(c *cli.Context) error {
	cfg, err := p.resolveValid(c)
	if err != nil {
		return err
	}
	opened, err := p.openConsole(c.Context, cfg, "console")
	if err != nil {
		return err
	}
	opened.log.Info("console started", "event", event.ConsoleStarted,
		"url", opened.url, "changes", cfg.console.allowChanges)
	return opened.serve(c.Context)
}

// openedConsole listens at url. Serve answers until its context is done, and closes the listener.
type openedConsole struct {
	url   string
	log   *slog.Logger
	serve func(context.Context) error
}

// openConsole opens the address of the console for a command.
func (p *process) openConsole(ctx context.Context, cfg *config, command string) (openedConsole, error) {
	of, err := p.consoleConfig(cfg)
	if err != nil {
		return openedConsole{}, err
	}
	served, err := console.New(of)
	if err != nil {
		return openedConsole{}, mistaken(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.console.listen)
	if err != nil {
		const hint = "cdc-relay %s --console-listen 127.0.0.1:9466" +
			"  # or another free address (CDC_RELAY_CONSOLE_LISTEN)"
		return openedConsole{}, failure.WithHint(fmt.Errorf("--console-listen: %w", err), fmt.Sprintf(hint, command))
	}
	return openedConsole{
		url: "http://" + listener.Addr().String() + "/", log: of.Log,
		serve: func(ctx context.Context) error { return served.Serve(ctx, listener) },
	}, nil
}

// consoleConfig returns the settings as the console needs them.
func (p *process) consoleConfig(cfg *config) (console.Config, error) {
	own := cfg.console
	token := ""
	if own.tokenFile != "" {
		var err error
		if token, err = console.ReadToken(own.tokenFile); err != nil {
			return console.Config{}, mistaken(err)
		}
	}
	log := p.logger(cfg)
	source := show.NewSource(cfg, func(note string) {
		log.Warn("settings differ from those of the running relay", "event", event.ConfigWarning, "hint", note)
	})
	return console.Config{
		Source: source,
		Access: console.Access{
			Listen:      own.listen,
			Hosts:       own.hosts,
			Token:       token,
			LoginHeader: own.loginHeader,
		},
		AllowChanges: own.allowChanges,
		ShowPayload:  cfg.selected.payload,
		Limits: console.Limits{
			Rows:     cfg.selected.limit,
			Failures: cfg.selected.top,
			CountAll: cfg.selected.exact,
		},
		Log:       log,
		Open:      p.openForConsole(cfg),
		Check:     p.checkForConsole(cfg, source),
		SetFilter: setFilter,
	}, nil
}

func (p *process) openForConsole(cfg *config) func(context.Context) (*operator.Tables, error) {
	return func(ctx context.Context) (*operator.Tables, error) {
		s, err := p.openSession(ctx, cfg, "console")
		if err != nil {
			return nil, err
		}
		return s.Tables, nil
	}
}

// checkForConsole is the command check, with the settings of the running relay, and by a role that is not a relay's.
// Opening a page must not send test messages.
func (p *process) checkForConsole(
	cfg *config, source *show.Source,
) func(context.Context) ([]doctor.Finding, error) {
	return func(ctx context.Context) ([]doctor.Finding, error) {
		own, _ := cfg.with(source.Known().Told)
		own.checking.noProbe = true
		options := checkOptions(own)
		options.Operator, options.Relays = true, compare(cfg, source)
		report, err := p.examine(ctx, options)
		return report.Findings, err
	}
}

// setFilter sets a condition as the flag of this name does.
func setFilter(f *operator.Filter, name, text string) error {
	cfg := &config{selected: selectFlags{filter: *f}}
	for _, s := range append(filterSettings(), stateSetting("", operator.States()...)) {
		if s.Name == name {
			err := s.Take(cfg, text)
			*f = cfg.selected.filter
			return err
		}
	}
	return fmt.Errorf("there is no filter %q", name)
}

// mistaken turns an error about flags into one of their user, with its hint.
func mistaken(err error) error { return failure.WithHint(usagef("%s", err), problem.Hint(err)) }

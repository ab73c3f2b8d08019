package main

import (
	"context"
	"errors"
	"fmt"
	"html/template"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/internal/event"
)

// consoling holds the flags of the console.
type consoling struct {
	listen      string
	tokenFile   string
	loginHeader string
	// proxies may set loginHeader; none: every client that sends the token.
	proxies []netip.Prefix
	// hosts are the names by which browsers open the console, in lower case.
	hosts        []string
	allowChanges bool
}

func consoleSettings() []*setting {
	return []*setting{
		{
			name: "listen", value: "HOST:PORT", byDefault: "127.0.0.1:9465",
			usage: "Serve the console at this address. Beyond loopback it needs --token-file or --login-header.",
			set:   func(c *config, text string) error { c.consoling.listen = text; return checkHostPort(text) },
		},
		{
			name: "allowed-hosts", value: "NAME,…",
			usage: "Host names by which browsers open the console, such as console.example.com. " +
				"Other names are rejected, except localhost, loopback addresses and the address of --listen. Default: none.",
			set: func(c *config, text string) (err error) {
				c.consoling.hosts, err = parseHosts(text)
				return err
			},
		},
		{
			name: "token-file", value: "FILE",
			usage: "A file with the token that the browser asks for as the password. The user name goes into the log. Default: none.",
			set:   func(c *config, text string) error { c.consoling.tokenFile = text; return notEmpty(text) },
		},
		{
			name: "login-header", value: "NAME",
			usage: "The header in which a proxy before the console names the user, such as X-Forwarded-User. " +
				"It needs --trusted-proxies, or --token-file with the token that the proxy sends. Default: none.",
			set: func(c *config, text string) error { c.consoling.loginHeader = text; return checkHeaderName(text) },
		},
		{
			name: "trusted-proxies", value: "ADDRESS,…",
			usage: "Addresses or networks (10.0.0.0/24) of the proxies that may set --login-header. " +
				"Clients at other addresses are rejected. Default: none.",
			set: func(c *config, text string) (err error) {
				c.consoling.proxies, err = parseProxies(text)
				return err
			},
		},
		switchSetting("allow-changes", "Let users of the console retry, requeue and purge.",
			func(c *config) *bool { return &c.consoling.allowChanges }),
	}
}

func (p *process) consoleCommand() *cli.Command {
	return &cli.Command{
		Name:      "console",
		Usage:     "serve pages for the browser: what waits, what fails, one message, check",
		UsageText: "cdc-relay console [FLAGS]",
		Description: `Serves pages for people on call, at http://127.0.0.1:9465. It is a process of its own with a
database role of its own, needs no RabbitMQ except for its page "check", and reads only,
unless --allow-changes is given. Throughput and latency are those of the relay at
--http-addr. Give it the relays' configuration.

EXAMPLES

  cdc-relay console --config /etc/cdc-relay.yaml
  cdc-relay console --listen 0.0.0.0:9465 --token-file /run/secrets/console --allow-changes`,
		Flags: describe(flags("listen", "allowed-hosts", "token-file", "login-header", "trusted-proxies", "allow-changes", "show-payload", "http-addr", "on-dead-letter", "max-retries",
			"poll-interval", "stale-timeout", "mode", "keep-published", "database-url", "amqp-url", "table", "slot", "publication", "shard", "exchange", "publisher",
			"log-level", "log-format", "config"), usages{"http-addr": askForNumbers}),
		Action: p.console,
	}
}

// console serves the pages.
type console struct {
	process *process
	cfg     *config
	log     *slog.Logger
	gate    *gate
	desks   desks
	history *history
	looks   *template.Template
	streams streams
	checks  checks
	// checkWait is how long the page "check" waits for a running check.
	checkWait time.Duration
	// running ends with the console.
	running context.Context //nolint:containedctx // changes and checks outlive their requests
}

func (p *process) console(c *cli.Context) error {
	cfg, err := p.resolve(c)
	if err != nil {
		return err
	}
	if err := cfg.validate(); err != nil {
		return err
	}
	s, err := p.newConsole(cfg)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(c.Context, "tcp", cfg.consoling.listen)
	if err != nil {
		return failure.WithHint(fmt.Errorf("--listen: %w", err), "cdc-relay console --listen 127.0.0.1:9466  # or another free address (CDC_RELAY_LISTEN)")
	}
	return s.serve(c.Context, listener)
}

// newConsole returns a console that has no connection yet.
func (p *process) newConsole(cfg *config) (*console, error) {
	quiet := *p
	quiet.terminal.Out = io.Discard // a page must not contain terminal colours
	s := &console{process: &quiet, cfg: cfg, log: p.logger(cfg), desks: newDesks(), history: newHistory(cfg), checkWait: checkWait}
	var err error
	if s.gate, err = newGate(cfg.consoling, s.log); err != nil {
		return nil, err
	}
	s.looks, err = consoleTemplates()
	return s, err
}

// serve answers requests until ctx is done.
func (s *console) serve(ctx context.Context, listener net.Listener) error {
	actors, running := errgroup.WithContext(ctx)
	server := &http.Server{
		Handler: s.handler(running), BaseContext: func(net.Listener) context.Context { return running },
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	s.log.Info("console started", "event", event.ConsoleStarted, "url", "http://"+listener.Addr().String()+"/", "changes", s.cfg.consoling.allowChanges)
	actors.Go(func() error { s.history.keep(running, s); return nil })
	actors.Go(func() error {
		if err := server.Serve(livelyListener{listener}); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve HTTP: %w", err)
		}
		return nil
	})
	actors.Go(func() error {
		<-running.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if server.Shutdown(grace) != nil {
			return server.Close()
		}
		return nil
	})
	err := actors.Wait()
	s.checks.running.Wait()
	s.desks.close(ctx)
	return err
}

package main

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"html/template"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// consoling holds the flags of the console.
type consoling struct {
	listen       string
	tokenFile    string
	loginHeader  string
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
			name: "token-file", value: "FILE",
			usage: "A file with the token that the browser asks for as the password. The user name goes into the log. Default: none.",
			set:   func(c *config, text string) error { c.consoling.tokenFile = text; return nil },
		},
		{
			name: "login-header", value: "NAME",
			usage: "The header in which a proxy before the console names the user, such as X-Forwarded-User. With --token-file, the proxy sends the token as well. Default: none.",
			set:   func(c *config, text string) error { c.consoling.loginHeader = text; return nil },
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
		Flags: describe(flags("listen", "token-file", "login-header", "allow-changes", "show-payload", "http-addr", "on-dead-letter", "max-retries",
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
	token   string
	desks   chan *desk // a nil desk is not connected yet
	history *history
	looks   *template.Template
	streams chan struct{} // one slot for each page that may update itself
}

const (
	// consoleDesks is how many pages may query the database at a time, each over its own connection.
	consoleDesks = 4
	// consoleStreams is how many pages may update themselves at a time.
	consoleStreams = 50
)

func (p *process) console(c *cli.Context) error {
	cfg, err := p.resolve(c)
	if err != nil {
		return err
	}
	if err := cfg.validate(); err != nil {
		return err
	}
	quiet := *p
	quiet.stdout = io.Discard // a page must not contain terminal colours
	s := &console{process: &quiet, cfg: cfg, log: p.logger(cfg), desks: make(chan *desk, consoleDesks), streams: make(chan struct{}, consoleStreams)}
	if s.token, err = consoleToken(cfg.consoling.tokenFile); err != nil {
		return err
	}
	if !isLoopback(cfg.consoling.listen) && s.open() {
		return usagef("--listen %s: beyond loopback it needs --token-file or --login-header", cfg.consoling.listen)
	}
	for range consoleDesks {
		s.desks <- nil
	}
	s.history = newHistory(cfg)
	if s.looks, err = consoleTemplates(); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(c.Context, "tcp", cfg.consoling.listen)
	if err != nil {
		return hinted{fmt.Errorf("--listen: %w", err), "cdc-relay console --listen 127.0.0.1:9466  # or another free address (CDC_RELAY_LISTEN)"}
	}
	return s.serve(c.Context, listener)
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
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
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
	for range consoleDesks {
		if d := <-s.desks; d != nil {
			closeConn(ctx, d.conn)
		}
	}
	return err
}

// open reports whether the console needs no login.
func (s *console) open() bool { return s.token == "" && s.cfg.consoling.loginHeader == "" }

// consoleToken reads the token from the file; "" without a file.
func consoleToken(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", usagef("--token-file: %s", err)
	}
	const least = 16
	token := strings.TrimSpace(string(text))
	if len(token) < least {
		return "", hinted{usagef("--token-file %s: want a token of at least %d characters", file, least), "openssl rand -hex 32 > " + file}
	}
	return token, nil
}

func isLoopback(hostPort string) bool {
	host, _, err := net.SplitHostPort(hostPort)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || (ip != nil && ip.IsLoopback()))
}

// user is the context key of a request's user.
type user struct{}

// who checks the login of each request. Without a login, it only accepts requests to a loopback host name, because in a
// DNS rebinding attack another name leads here.
func (s *console) who(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := "local user"
		login, password, _ := r.BasicAuth()
		named := r.Header.Get(s.cfg.consoling.loginHeader)
		switch {
		case s.open() && !isLoopback(hostPort(r.Host)):
			http.Error(w, "open the console as http://"+s.cfg.consoling.listen+"/", http.StatusMisdirectedRequest)
			return
		case s.open():
		case s.token != "" && subtle.ConstantTimeCompare([]byte(password), []byte(s.token)) != 1:
			w.Header().Set("WWW-Authenticate", `Basic realm="cdc-relay console", charset="UTF-8"`)
			http.Error(w, "log in", http.StatusUnauthorized)
			return
		case s.cfg.consoling.loginHeader == "":
			name = login
		case named != "":
			name = named
		default:
			http.Error(w, "log in at the proxy", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), user{}, name)))
	})
}

func hostPort(host string) string {
	if _, _, err := net.SplitHostPort(host); err != nil {
		return net.JoinHostPort(strings.Trim(host, "[]"), "80")
	}
	return host
}

// secure sets the security headers of every answer.
func secure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// atDesk calls do with one of the connections. It waits until one is free.
func (s *console) atDesk(ctx context.Context, do func(context.Context, *desk) error) error {
	var d *desk
	select {
	case d = <-s.desks:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { s.desks <- d }()
	if d == nil || d.conn.IsClosed() {
		d = nil
		fresh, err := s.process.openDesk(ctx, s.cfg, "console")
		if err != nil {
			return err
		}
		d = fresh
	}
	return do(ctx, d)
}

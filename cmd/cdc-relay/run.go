package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/hosts"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/notice"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/service"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/statsd"
	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/publish/amqp"
	"github.com/cdc-relay/cdc-relay/publish/handler"
	"github.com/cdc-relay/cdc-relay/publish/stdout"
	"github.com/cdc-relay/cdc-relay/relay"
	"github.com/cdc-relay/cdc-relay/tracing"
)

// relayFlags are the flags that run and drain share.
func relayFlags(more ...string) []cli.Flag {
	names := []string{
		"database-url", "amqp-url", "config", "table", "owner", "slot", "publication", "shard", "mode",
		"publisher", "exchange", "header-columns", "ordering-key-header", "max-in-flight", "poll-interval",
		"send-timeout", "shutdown-timeout", "max-retries", "backoff-time", "max-backoff", "on-dead-letter",
		"on-expired", "keep-published", "events-exchange", "events", "log-headers", "metrics-routing-keys",
		"metrics-header",
		"statsd-addr", "log-level", "log-format",
	}
	picked := flags(append(names, more...)...)
	common := []string{
		"database-url", "amqp-url", "config", "setup", "table", "mode", "exchange", "max-retries", "http-addr",
		"log-level",
	}
	for _, s := range settings.FlagsOf(picked) {
		s.Advanced = !slices.Contains(common, s.Name)
	}
	return picked
}

func (p *process) runCommand() *cli.Command {
	return &cli.Command{
		Name:      "run",
		Usage:     "the service: publish rows until it is stopped",
		UsageText: "cdc-relay run [FLAGS]",
		Description: `Publishes each committed row of the outbox, and deletes it when RabbitMQ has confirmed it.
Start as many as you like: one is the leader, the others are standbys and take over. If
Postgres or RabbitMQ is down, the relay waits for it and loses nothing.

On Ctrl-C, SIGTERM or SIGHUP the relay reads no new rows, finishes the messages in flight
(--shutdown-timeout), and exits with 0. A restart then publishes nothing twice. A second
signal ends it at once.

EXAMPLES

  cdc-relay run --database-url postgres://relay@localhost/shop --amqp-url amqp://localhost
  cdc-relay run --config /etc/cdc-relay/config.yaml
  cdc-relay run --setup                       # in a container: create the tables first
  cdc-relay run --publisher stdout            # see the messages without RabbitMQ
  cdc-relay run --publisher exec -- ./handler # give them to a program (docs/delivery.md)
  curl localhost:9464/readyz                  # health; /metrics has the numbers`,
		Flags:  relayFlags("setup", "dead-letter-retention", "http-addr", "liveness-file"),
		Action: p.serve,
	}
}

// reportingRelay is one relay and the outputs it reports to.
type reportingRelay struct {
	relay    *relay.Relay
	registry *prometheus.Registry
	log      *slog.Logger
	statsd   *statsd.Bridge  // nil: not wanted
	notices  *notice.Notices // nil: none
	tracer   *tracing.Tracer // nil: none
}

// withHandler reads the settings of a command whose arguments are the handler of --publisher exec.
func (p *process) withHandler(c *cli.Context) (*config, error) {
	cfg, err := p.settingsFor(c)
	if cfg == nil {
		return nil, err
	}
	cfg.handler = c.Args().Slice()
	switch {
	case cfg.publisher != "exec" && len(cfg.handler) > 0:
		err = errors.Join(err, unexpected(c))
	case cfg.publisher == "exec" && len(cfg.handler) == 0:
		const text = "--publisher exec: write the handler after --, such as: cdc-relay %s --publisher exec -- ./handler"
		err = errors.Join(err, usagef(text, commandPath(c)))
	}
	return cfg, err
}

// relayConfig reads the settings of run, drain and check. It returns all mistakes.
func (p *process) relayConfig(c *cli.Context) (*config, error) {
	cfg, err := p.withHandler(c)
	if cfg == nil {
		return nil, err
	}
	err = errors.Join(err, cfg.validate())
	switch {
	case cfg.publisher == "amqp":
		err = errors.Join(err, cfg.needAMQP())
	case cfg.signals.eventsExchange != "":
		err = errors.Join(err, usagef("--events-exchange needs --publisher amqp"))
	}
	if cfg.publisher == "exec" && len(cfg.handler) > 0 {
		if _, missing := exec.LookPath(cfg.handler[0]); missing != nil {
			err = errors.Join(err, usagef("--publisher exec: %s", missing))
		}
	}
	return cfg, err
}

func newRegistry(droppedLines func() int64) *prometheus.Registry {
	b := buildInfo()
	registry := service.NewRegistry(service.Build{Version: b.Version, Commit: b.Commit})
	registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "cdc_relay_log_lines_dropped_total",
		Help: "Lines of the log that were dropped, because their reader was slow or failed.",
	}, func() float64 { return float64(droppedLines()) }))
	return registry
}

// newService prepares a relay to run or to drain. If the reader of the standard output closes it, the write fails from
// then on and the relay stops in order; without that, SIGPIPE would end the process.
func (p *process) newService(ctx context.Context, cfg *config) (*reportingRelay, error) {
	signal.Ignore(syscall.SIGPIPE)
	log := p.logger(cfg)
	if cfg.setup {
		cfg.relay.Prepare = func(ctx context.Context) error { return p.prepare(ctx, cfg, log) }
	}
	publisher, err := p.newPublisher(cfg, log)
	if err != nil {
		return nil, err
	}
	s := &reportingRelay{registry: newRegistry(p.terminal.DroppedLines), log: log}
	if err := s.registerNotices(cfg); err != nil {
		return nil, err
	}
	s.trace(ctx, cfg)
	if address := cfg.signals.statsd; address != "" {
		if s.statsd, err = statsd.New(address, s.registry, log); err != nil {
			return nil, err
		}
	}
	cfg.relay.Version, cfg.relay.Settings = buildInfo().Version, cfg.shared()
	cfg.relay.LateRetries = cfg.publisher == "exec" // its answers may have retry_in
	s.relay, err = relay.New(cfg.relay, publisher, log, s.registry)
	return s, err
}

// prepare creates the tables before the relay starts, which creates publication and slot itself. An error that is not a
// problem is one of the connection: the relay calls it again.
func (p *process) prepare(ctx context.Context, cfg *config, log *slog.Logger) error {
	conn, err := connect(ctx, cfg.database(), "run --setup", pgdial.CatalogOnly)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	report := p.newSetupReport(cfg)
	report.json, report.log = true, log
	err = report.setUpTables(ctx, conn, cfg)
	switch {
	case err == nil || conn.IsClosed() || ctx.Err() != nil:
		return err
	case pgcode.Is(err, pgerrcode.InsufficientPrivilege) || errors.Is(err, provision.ErrMayNot):
		role := conn.Config().User
		return &problem.Problem{
			What: fmt.Sprintf("--setup: role %s lacks privileges to create what is missing", outbox.Identifier(role)),
			Fix:  cfg.setupCommandFor(role, &conn.Config().Config),
			Err:  err,
		}
	case problem.Is(err):
		return err
	}
	return &problem.Problem{What: "--setup failed", Fix: cfg.database().Hint(err), Err: err}
}

// setupCommandFor is the setup by another role that lets this one run.
func (c *config) setupCommandFor(role string, at *pgconn.Config) string {
	command := "cdc-relay setup --database-url " + ownersURL(at) + " --relay-role " + problem.ShellWord(role)
	for _, name := range []string{
		"table", "owner", "slot", "publication", "shard", "mode", "keep-published", "dead-letter-retention",
	} {
		if v, given := c.given[name]; given {
			command += " --" + name + " " + problem.ShellWord(v.Text)
		}
	}
	return command + "  # OWNER: a superuser, or the owner of the database"
}

func (p *process) newPublisher(cfg *config, log *slog.Logger) (publish.Publisher, error) {
	switch cfg.publisher {
	case "exec":
		publisher, err := handler.New(handler.Config{
			Command: cfg.handler, Env: handler.Environment(p.environ()), Stderr: p.terminal.Err,
			DefaultExchange: cfg.exchange,
			AnswerTimeout:   cfg.relay.SendTimeout, Logger: log, ReapOrphans: os.Getpid() == 1,
		})
		if err != nil {
			return nil, usagef("--publisher exec: %s", err)
		}
		return publisher, nil
	case "stdout":
		if closedOutput(show.Raw(p.terminal.Out)) {
			return nil, usagef("--publisher stdout: the standard output is closed")
		}
		return stdout.New(stdout.Config{Writer: p.terminal.Verbatim(), DefaultExchange: cfg.exchange}), nil
	}
	return newAMQP(cfg, cfg.relay.MaxInFlight, log)
}

// closedOutput reports whether the standard output was closed at the start. Go then opens /dev/null for reading and
// writing; a shell's >/dev/null cannot be read.
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

func newAMQP(cfg *config, maxInFlight int, log *slog.Logger) (*amqp.Publisher, error) {
	publisher, err := amqp.New(amqp.Config{
		URL:             cfg.rabbitmq.Value,
		URLFile:         cfg.rabbitmq.File,
		DefaultExchange: cfg.exchange,
		MaxInFlight:     maxInFlight,
		SendTimeout:     cfg.relay.SendTimeout,
		Logger:          log,
	})
	if err != nil {
		return nil, usagef("--amqp-url: %s", err)
	}
	return publisher, nil
}

// serve runs the parts of the service. The relay stops first and drains. The liveness file, the HTTP server and the
// metrics sender report until then.
func (p *process) serve(c *cli.Context) error {
	cfg, err := p.relayConfig(c)
	if err != nil {
		return err
	}
	return p.ended("run", cfg, p.serveWith(c, cfg))
}

func (p *process) serveWith(c *cli.Context, cfg *config) error {
	listener, err := service.Listen(c.Context, cfg.httpAddr)
	if err != nil {
		return err
	}
	if listener != nil {
		defer listener.Close() // Serve may have done so
	}
	file, err := service.NewLivenessFile(cfg.livenessFile)
	if err != nil {
		return err
	}
	systemd, err := service.Supervised()
	if err != nil {
		return err
	}
	s, err := p.newService(c.Context, cfg)
	if err != nil {
		return err
	}
	s.logStart("run", cfg)

	reporting, stopReporting := context.WithCancel(context.WithoutCancel(c.Context))
	defer stopReporting()
	actors, reporting := errgroup.WithContext(reporting)
	running, stopRunning := context.WithCancel(c.Context)
	defer stopRunning()
	actors.Go(func() error {
		defer stopReporting()
		defer stopRunning()
		return s.relay.Run(running)
	})
	actors.Go(func() error {
		defer stopRunning() // a server that fails stops the relay, which drains
		return service.Serve(reporting, listener, service.Pages{
			Reporter: s.relay, Judge: p.judge(cfg, s.relay), Registry: s.registry,
			Hosts: hosts.Known{Listen: cfg.httpAddr},
		}, s.log)
	})
	actors.Go(func() error { file.Keep(reporting, s.relay, s.log); return nil })
	actors.Go(func() error { systemd.Keep(reporting, running, s.relay, s.log); return nil })
	counting, stopCounting := context.WithCancel(context.WithoutCancel(c.Context))
	actors.Go(func() error {
		defer stopCounting() // the notices of the drain are counted, too
		return s.notify(reporting)
	})
	actors.Go(func() error {
		<-reporting.Done()
		s.endTrace(reporting)
		return nil
	})
	if s.statsd != nil {
		actors.Go(func() error { s.statsd.Run(counting); return nil })
	}
	return waitForEnd(running, cfg.relay.ShutdownTimeout+endGrace, actors.Wait)
}

// endGrace is how long after the relay's own limit the process still waits for what hangs.
const endGrace = 2 * time.Second

// waitForEnd waits at most this long after ctx is done: a call into a library may never return.
func waitForEnd(ctx context.Context, most time.Duration, wait func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- wait() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(most):
		return errors.New("a part of the process hangs: exiting without it; no message is lost")
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/relay"
)

// checking is what check alone asks for.
type checking struct {
	appRole string
	noProbe bool
	// managementURL is "" for the usual port.
	managementURL string
}

func checkSettings() []*setting {
	return []*setting{
		{
			name: "app-role", value: "NAME",
			usage: "The role of the application: check that it may INSERT. With setup --functions: let it call them.",
			set:   func(c *config, text string) error { c.checking.appRole = text; return nil },
		},
		{
			name: "management-url", value: "URL",
			usage: "RabbitMQ's HTTP API, http://host:15672 or https://; with user and password if they differ from " +
				"those of --amqp-url. Default: the usual port of the host in --amqp-url.",
			set: func(c *config, text string) error {
				c.checking.managementURL = text
				return checkManagementURL(text)
			},
		},
		switchSetting("no-probe", "Skip the test messages to the broker and the check of routes.",
			func(c *config) *bool { return &c.checking.noProbe }),
	}
}

// checkManagementURL never quotes the URL, as checkDatabaseURL.
func checkManagementURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || atAfterHost(text) || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return fmt.Errorf("want a URL that begins with http:// or https://; %s", encodeHint)
	}
	return nil
}

func (p *process) checkCommand() *cli.Command {
	return &cli.Command{
		Name:      "check",
		Usage:     "say what is right, what is wrong, and what mends it",
		UsageText: "cdc-relay check [FLAGS]",
		Description: `Looks at Postgres, the tables, the grants, the publication, the slot and RabbitMQ as "run"
with the same flags would use them: one line for each finding, and for what is not right
the command or SQL that mends it. It changes nothing, and leaves nothing behind.

Run it as the relay's own role, whose grants are what it looks at. Exit code 1 where
something is wrong, 0 where all is right or only a warning is given.

EXAMPLES

  cdc-relay check --database-url postgres://relay@localhost/shop --amqp-url amqp://localhost
  cdc-relay check --app-role shop_app         # may the application INSERT?
  cdc-relay check --format json | jq -r '.findings[] | select(.level != "ok") | .mend'
  cdc-relay check --publisher stdout          # without a broker`,
		Flags: flags("database-url", "amqp-url", "config", "table", "slot", "publication", "shard", "mode", "publisher", "exchange",
			"app-role", "management-url", "no-probe", "format"),
		Action: p.check,
	}
}

func (p *process) check(c *cli.Context) error {
	cfg, err := p.relayConfig(c)
	if err != nil {
		return err
	}
	options := doctor.Options{
		Connect: func(ctx context.Context, parameters map[string]string) (*pgx.Conn, error) {
			return connectToCheck(ctx, cfg.relay.DatabaseURL, parameters)
		},
		Table: cfg.relay.Table, Slot: cfg.names().Slot, Publication: cfg.names().Publication, Shard: cfg.relay.Shard,
		Poll: cfg.relay.Mode == relay.ModePoll, AppRole: cfg.checking.appRole,
		Exchange: cfg.exchange, ManagementURL: cfg.checking.managementURL, NoProbe: cfg.checking.noProbe,
	}
	if cfg.publisher == "amqp" {
		options.AMQPURL = cfg.amqpURL
	}
	findings := doctor.Examine(c.Context, options)
	if c.Context.Err() != nil {
		return errors.New("check: interrupted")
	}
	for i := range findings {
		findings[i].Says = string(redact([]byte(findings[i].Says)))
	}
	if err := p.showFindings(cfg, findings); err != nil {
		return err
	}
	if doctor.Worst(findings) == doctor.Problem {
		return fmt.Errorf("check: %s", counted(findings))
	}
	return nil
}

// connectToCheck connects with parameters of the start-up.
func connectToCheck(ctx context.Context, url string, parameters map[string]string) (*pgx.Conn, error) {
	return connectWith(ctx, url, "check", func(config *pgx.ConnConfig) {
		maps.Copy(config.RuntimeParams, parameters)
		config.DefaultQueryExecMode = pgx.QueryExecModeExec // a pooler may lose prepared statements
		if config.ValidateConnect != nil && parameters["default_transaction_read_only"] != "" {
			config.ValidateConnect = asWriter(config.ValidateConnect)
		}
	})
}

// asWriter asks for target_session_attrs within a transaction that may write, since the
// session's default would make a primary look like a standby. Nothing of it stays.
func asWriter(validate pgconn.ValidateConnectFunc) pgconn.ValidateConnectFunc {
	return func(ctx context.Context, conn *pgconn.PgConn) error {
		if _, err := conn.Exec(ctx, "BEGIN READ WRITE").ReadAll(); err != nil {
			return validate(ctx, conn) // a standby refuses
		}
		says := validate(ctx, conn) // with prefer-standby, a primary that it refuses is taken where nothing else is there
		if _, err := conn.Exec(ctx, "ROLLBACK").ReadAll(); says == nil {
			return err
		}
		return says
	}
}

// checkReport is the JSON of the command.
type checkReport struct {
	Level    doctor.Level     `json:"level"` // the worst
	Findings []doctor.Finding `json:"findings"`
}

func (p *process) showFindings(cfg *config, findings []doctor.Finding) error {
	if cfg.format == formatJSON {
		return p.writeJSON(checkReport{Level: doctor.Worst(findings), Findings: findings})
	}
	table := p.newTable()
	for _, f := range findings {
		says := f.Says
		if f.Mend != "" {
			says += "\n  " + strings.ReplaceAll(f.Mend, "\n", "\n  ")
		}
		table.row(p.paint(colourOf(f.Level), string(f.Level)), string(f.Area), f.Name, says)
	}
	if err := table.write(); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(p.stdout, "\n%s\n", counted(findings)); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

func colourOf(level doctor.Level) text.Color {
	switch level {
	case doctor.Problem:
		return text.FgRed
	case doctor.Warning:
		return text.FgYellow
	}
	return text.FgGreen
}

// counted: "1 problem, 2 warnings, 30 ok".
func counted(findings []doctor.Finding) string {
	counts := map[doctor.Level]int{}
	for _, f := range findings {
		counts[f.Level]++
	}
	var parts []string
	for _, level := range []doctor.Level{doctor.Problem, doctor.Warning} {
		if n := counts[level]; n == 1 {
			parts = append(parts, "1 "+string(level))
		} else if n > 1 {
			parts = append(parts, fmt.Sprintf("%d %ss", n, level))
		}
	}
	return strings.Join(append(parts, fmt.Sprintf("%d ok", counts[doctor.OK])), ", ")
}

package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/secret"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/relay"
)

// checkFlags are the flags that only check reads.
type checkFlags struct {
	appRoles []string
	// appInsertOnly: grant the roles INSERT and nothing else.
	appInsertOnly bool
	// relayRole: "" means the role of --database-url.
	relayRole string
	noProbe   bool
	// managementURL: "" means the usual port.
	managementURL string
	fix, strict   bool
}

func checkSettings() []setting {
	return []setting{
		settings.Repeats(settings.Parsed("app-role", "NAME,…", "",
			"The role of the application: check that it may INSERT. With setup: grant that, or, with "+
				"--functions, let it call them. Several roles: with commas, or the flag again.",
			func(c *config) *[]string { return &c.checking.appRoles }, roleNames)),
		settings.Switch("app-insert-only", "With setup: let --app-role INSERT, and read nothing. "+
			"ORMs that send INSERT … RETURNING then fail.",
			func(c *config) *bool { return &c.checking.appInsertOnly }),
		settings.Text("relay-role", "NAME", "",
			"The role of the relay, if --database-url is that of an administrator: check the grants of this role. "+
				"With setup: grant what it needs. --fix --yes runs its commands as the administrator.",
			func(c *config) *string { return &c.checking.relayRole }, checkRoleName),
		settings.Text("management-url", "URL", "",
			"RabbitMQ's HTTP API, http://host:15672 or https://; with user and password if they differ from "+
				"those of --amqp-url. Default: the usual port of the host in --amqp-url.",
			func(c *config) *string { return &c.checking.managementURL }, checkManagementURL),
		settings.Switch("no-probe", "Skip the test messages to RabbitMQ and the check of routes.",
			func(c *config) *bool { return &c.checking.noProbe }),
		settings.FlagOnly(settings.Switch("fix",
			"Print the repairs that only add something or grant a privilege; with --yes, run them and look again.",
			func(c *config) *bool { return &c.checking.fix })),
		settings.FlagOnly(settings.Switch("strict", "Fail on warnings, too.",
			func(c *config) *bool { return &c.checking.strict })),
	}
}

// roleNames splits a list of roles. A name with a comma or a double quote is in double quotes, as in SQL.
func roleNames(text string) ([]string, error) {
	records, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil || len(records) != 1 {
		return nil, fmt.Errorf("%q: want names with commas between them; put a name with a comma, a double quote or "+
			"a line break in double quotes", text)
	}
	for _, name := range records[0] {
		if err := checkRoleName(name); err != nil {
			return nil, err
		}
	}
	return records[0], nil
}

// checkRoleName rejects what names no role, or would name another one: Postgres cuts long names.
func checkRoleName(name string) error {
	const longest = 63
	switch {
	case name == "":
		return errors.New("the name of a role is empty")
	case len(name) > longest:
		return fmt.Errorf("%q: a role's name has at most %d bytes", name, longest)
	case name == "public" || name == "none":
		return fmt.Errorf("%q: not the name of a role; Postgres reserves it", name)
	}
	return nil
}

// checkManagementURL never quotes the URL, which may contain a password. See checkDatabaseURL.
func checkManagementURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || secret.AtAfterHost(text) || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return fmt.Errorf("want a URL that begins with http:// or https://; %s", secret.Encode)
	}
	return nil
}

func (p *process) checkCommand() *cli.Command {
	return &cli.Command{
		Name:      "check",
		Usage:     "find out what is wrong with servers, tables and grants, and how to fix it",
		UsageText: "cdc-relay check [FLAGS]",
		Description: `Checks Postgres, the tables, grants, publication, slot and RabbitMQ with the settings that
"run" would use. It prints one line for each problem, the worst first, and the commands that
fix it. --all lists also what is well. Without --fix --yes it changes nothing.

Run it as the relay's own role, because it checks the grants of that role, or give the role
in --relay-role. The exit code is 1 if there is a problem, or, with --strict, a warning.
Otherwise it is 0.

--fix prints the safe repairs: they create what is missing and grant what a relay needs.
--fix --yes runs them as the role in --database-url. It never drops anything.

EXAMPLES

  cdc-relay check --database-url postgres://relay@localhost/shop --amqp-url amqp://localhost
  cdc-relay check --app-role shop_app         # may the application INSERT?
  cdc-relay check --json | jq -r '.findings[] | select(.level != "ok") | .fix[]?'
  cdc-relay check --fix --yes --relay-role relay --database-url postgres://postgres@localhost/shop
  cdc-relay check --publisher stdout          # without RabbitMQ`,
		Flags: describe(append(asFlags(allSetting()), flags(
			"database-url", "amqp-url", "config", "table", "owner", "slot", "publication", "shard", "mode",
			"publisher", "exchange", "keep-published", "events-exchange", "app-role", "relay-role",
			"management-url", "no-probe", "fix", "yes", "strict", "json",
		)...), usages{
			"all": "Also list the checks that passed.",
			"app-role": "The role of the application: check that it may INSERT. " +
				"Several roles: with commas, or the flag again.",
			"relay-role": "The role of the relay, if --database-url is that of an administrator: " +
				"check the grants of this role. --fix --yes runs its commands as the administrator.",
			"yes": "With --fix: run the repairs without asking.",
		}),
		Action: p.check,
	}
}

func (p *process) check(c *cli.Context) error {
	cfg, err := p.relayConfig(c)
	if err != nil {
		return err
	}
	options := checkOptions(cfg)
	options.Relays = compare(cfg, show.NewSource(compared{cfg}, p.note))
	report, err := p.examine(c.Context, options)
	if err != nil {
		return err
	}
	if cfg.checking.fix {
		if report, err = p.repairAll(c, cfg, options, report); err != nil {
			return err
		}
	}
	if err := p.showFindings(cfg, report); err != nil {
		return err
	}
	if report.Level == doctor.Problem || cfg.checking.strict && report.Level != doctor.OK {
		return fmt.Errorf("check: %s", doctor.Summary(report.Findings))
	}
	return nil
}

// repairAll repairs and examines again, as long as that helps: a repair can make others possible.
func (p *process) repairAll(
	c *cli.Context, cfg *config, options doctor.Options, report checkReport,
) (checkReport, error) {
	var all []repairView
	for range 3 {
		repairs := p.repair(c, cfg, doctor.Repairs(report.Findings))
		all = append(all, repairs...)
		if !cfg.yes || len(repairs) == 0 {
			break
		}
		var err error
		if report, err = p.examine(c.Context, options); err != nil {
			return report, err
		}
		if !slices.ContainsFunc(repairs, func(r repairView) bool { return r.Done }) {
			break
		}
	}
	report.Repairs = all
	return report, nil
}

// checkOptions returns what check examines.
func checkOptions(cfg *config) doctor.Options {
	options := doctor.Options{
		Connect: func(ctx context.Context, parameters map[string]string) (*pgx.Conn, error) {
			return connectToCheck(ctx, cfg.database(), cfg.checking.relayRole, parameters)
		},
		Table: cfg.relay.Table, TableOwner: cfg.relay.TableOwner, Slot: cfg.relay.Names().Slot,
		Publication: cfg.relay.Names().Publication, Shard: cfg.relay.Shard, FailoverSlot: cfg.relay.FailoverSlot,
		Administrator: cfg.checking.relayRole != "", Poll: cfg.relay.Mode == relay.ModePoll,
		KeepPublished: cfg.relay.KeepPublished, AppRoles: cfg.checking.appRoles,
		Exchange: cfg.exchange, EventsExchange: cfg.signals.eventsExchange,
		ManagementURL: cfg.checking.managementURL, NoProbe: cfg.checking.noProbe,
	}
	if cfg.publisher == "amqp" {
		options.RabbitMQ = cfg.rabbitmq
	}
	return options
}

func (p *process) examine(ctx context.Context, options doctor.Options) (checkReport, error) {
	findings := doctor.Examine(ctx, options)
	if ctx.Err() != nil {
		return checkReport{}, errors.New("check: interrupted")
	}
	for i := range findings {
		findings[i].Message = string(show.Redact([]byte(findings[i].Message)))
		for n, line := range findings[i].Fix {
			findings[i].Fix[n] = string(show.Redact([]byte(line)))
		}
	}
	return checkReport{Level: findings[0].Level, Findings: findings}, nil
}

// repair runs the commands of --yes one by one. A failed command does not stop the others.
func (p *process) repair(c *cli.Context, cfg *config, repairs []doctor.Repair) []repairView {
	views := make([]repairView, len(repairs))
	var conn *pgx.Conn
	var err error
	if cfg.yes && len(repairs) > 0 {
		if conn, err = connect(c.Context, cfg.database(), "check", pgdial.CatalogOnly); err == nil {
			defer closeConn(c.Context, conn)
		}
	}
	quiet := &setupReport{json: true} // the report has its own line for it
	bare := *cfg
	bare.checking = checkFlags{} // each grant is a repair of its own
	for i, repair := range repairs {
		views[i].Command = string(show.Redact([]byte(repair.String())))
		if !cfg.yes {
			continue
		}
		failed := err
		switch {
		case failed != nil:
		case repair.Setup:
			failed = quiet.setUp(c.Context, conn, &bare)
		case repair.SQL == "":
			failed = quiet.upgrade(c.Context, conn, cfg)
		default:
			failed = repair.Run(c.Context, conn.PgConn())
		}
		views[i].Done = failed == nil
		if failed != nil {
			views[i].Error = string(show.Redact([]byte(show.OneLine(failed.Error()))))
		}
	}
	return views
}

// connectToCheck connects with the given startup parameters. The session has the privileges of the role; "": of the one
// in the URL.
func connectToCheck(
	ctx context.Context, address pgdial.Address, role string, parameters map[string]string,
) (*pgx.Conn, error) {
	conn, err := connectWith(ctx, address, "check", func(config *pgx.ConnConfig) {
		maps.Copy(config.RuntimeParams, parameters)
		if role != "" {
			config.RuntimeParams["role"] = role
		}
		config.DefaultQueryExecMode = pgx.QueryExecModeExec // prepared statements can break behind a pooler
		if parameters["replication"] == "" {
			pgdial.AsWriter(&config.Config)
		}
	})
	switch name := outbox.QuoteIdentifier(role); {
	case role == "" || err == nil:
	case pgcode.Is(err, pgerrcode.InvalidParameterValue):
		err = failure.WithHint(
			err, fmt.Sprintf("CREATE ROLE %s LOGIN;  -- or set --relay-role to an existing role", name),
		)
	case pgcode.Is(err, pgerrcode.InsufficientPrivilege):
		err = failure.WithHint(
			err, "# use the relay's own role in --database-url (CDC_RELAY_DATABASE_URL), "+
				"or an administrator's that is a member of "+name,
		)
	}
	return conn, err
}

// checkReport is the JSON output of check.
type checkReport struct {
	Level    doctor.Level     `json:"level"` // the worst level of all findings
	Findings []doctor.Finding `json:"findings"`
	Repairs  []repairView     `json:"repairs,omitempty"` // with --fix
}

// repairView is one command that --fix selects.
type repairView struct {
	Command string `json:"command"`
	Done    bool   `json:"done"` // with --yes
	Error   string `json:"error,omitempty"`
}

func (p *process) showFindings(cfg *config, report checkReport) error {
	if cfg.json {
		return p.terminal.JSON(report)
	}
	table, listed := p.terminal.Table(), report.Findings
	if !cfg.selected.all {
		listed, _ = doctor.Split(listed)
	}
	for _, f := range listed {
		text := strings.Join(append([]string{f.Message}, f.Fix...), "\n  ")
		table.Row(p.terminal.Paint(colourOf(f.Level), string(f.Level)), string(f.Area), f.Name, text)
	}
	if err := table.Write(); err != nil {
		return err
	}
	passed := ""
	if n := len(report.Findings) - len(listed); n > 0 {
		passed = fmt.Sprintf("\n%d other checks passed (--all lists them)\n", n)
	}
	if _, err := fmt.Fprint(p.terminal.Out, passed, repairsText(cfg, report.Repairs)); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

func repairsText(cfg *config, repairs []repairView) string {
	if !cfg.checking.fix {
		return ""
	}
	if len(repairs) == 0 {
		return "\nnothing that --fix repairs\n"
	}
	text := "\n--fix --yes would run:\n"
	if cfg.yes {
		text = "\nrepairs, before this check:\n"
	}
	for _, r := range repairs {
		switch {
		case r.Done:
			text += "  done: " + r.Command + "\n"
		case r.Error != "":
			text += "  failed: " + r.Command + "\n    " + r.Error + "\n"
		default:
			text += "  " + r.Command + "\n"
		}
	}
	return text
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

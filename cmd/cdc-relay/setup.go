package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/terminal"
	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/relay"
	"github.com/cdc-relay/cdc-relay/replication"
	"github.com/cdc-relay/cdc-relay/store"
)

// slotTimeout is how long setup waits for the slot: Postgres waits for all open transactions when it creates one.
const slotTimeout = time.Minute

func (p *process) setupCommand() *cli.Command {
	return &cli.Command{
		Name:      "setup",
		Usage:     "create the tables, the publication and the replication slot",
		UsageText: "cdc-relay setup [FLAGS]",
		Description: `Creates what is missing in the database: the outbox table and its dead-letter table, the
publication and the slot. A second run changes nothing. With --mode poll it creates only the
tables. With --functions it also creates the SQL functions outbox_enqueue, outbox_celery,
outbox_await and outbox_cancel (docs/functions.md), and lets --app-role call them. Without
--functions it lets --app-role insert into the table.

EXAMPLES

  cdc-relay setup --database-url postgres://postgres@localhost/shop
  cdc-relay setup --print-sql > setup.sql     # for a DBA; with suggested GRANTs
  cdc-relay setup --app-role shop_app         # an existing role; it may then INSERT
  cdc-relay setup --functions --app-role shop_app
  cdc-relay setup --table 'billing."Out.Box"' --slot billing --publication billing
  cdc-relay setup --shards 4                  # slots and publications for run --shard 0/4 to 3/4`,
		Flags: describe(flags(
			"database-url", "table", "slot", "publication", "shard", "shards", "mode", "functions", "app-role",
			"keep-published", "print-sql", "format", "config",
		), usages{
			"app-role":  "The role of the application: let it insert messages, or with --functions call the functions.",
			"print-sql": "Print the SQL for psql instead of running it. This needs no database.",
		}),
		Action: p.setup,
	}
}

func (p *process) setup(c *cli.Context) error {
	cfg, err := p.resolve(c)
	if err != nil {
		return err
	}
	if cfg.printSQL {
		return p.printSetup(cfg)
	}
	if err := cfg.validate(); err != nil {
		return err
	}
	conn, err := connect(c.Context, cfg.database(), "setup", pgdial.CatalogOnly)
	if err != nil {
		return err
	}
	defer closeConn(c.Context, conn)
	made := p.newSetupReport(cfg)
	return made.end(made.setUp(c.Context, conn, cfg))
}

// setupView is the JSON output of setup and migrate up.
type setupView struct {
	Table   string `json:"table"`
	Version int    `json:"version"` // of the tables; 0: none
	// Done says in words what was created; empty: nothing was missing.
	Done  []string `json:"done"`
	Error string   `json:"error,omitempty"`
}

// setupReport prints each step at once, or all steps as JSON at the end.
type setupReport struct {
	terminal terminal.Terminal
	json     bool
	view     setupView
}

func (p *process) newSetupReport(cfg *config) *setupReport {
	return &setupReport{
		terminal: p.terminal,
		json:     cfg.format == formatJSON,
		view:     setupView{Table: cfg.relay.Table.String(), Done: []string{}},
	}
}

// did reports a change.
func (r *setupReport) did(format string, args ...any) {
	r.view.Done = append(r.view.Done, fmt.Sprintf(format, args...))
	r.found(format, args...)
}

// found reports what existed already.
func (r *setupReport) found(format string, args ...any) {
	if !r.json {
		fmt.Fprintf(r.terminal.Out, format+"\n", args...)
	}
}

// afterAWhile tells a person what a step waits for, unless the caller stops it before.
func (r *setupReport) afterAWhile(format string, args ...any) *time.Timer {
	const patience = 2 * time.Second
	return time.AfterFunc(patience, func() {
		if !r.json {
			fmt.Fprintf(r.terminal.Err, format+"\n", args...)
		}
	})
}

func (r *setupReport) end(err error) error {
	if !r.json {
		return err
	}
	if err != nil {
		r.view.Error = show.OneLine(err.Error())
	}
	return errors.Join(err, r.terminal.JSON(r.view))
}

// setUp creates what is missing.
func (r *setupReport) setUp(ctx context.Context, conn *pgx.Conn, cfg *config) error {
	if cfg.relay.Mode != relay.ModePoll { // before anything is created
		for _, names := range cfg.allNames() {
			if err := replication.CheckNames(ctx, conn.PgConn(), names); err != nil {
				return err
			}
		}
	}
	if err := r.upgrade(ctx, conn, cfg.relay.Table); err != nil {
		return err
	}
	if err := r.makeFunctions(ctx, conn, cfg); err != nil {
		return err
	}
	if err := r.letInsert(ctx, conn, cfg); err != nil {
		return err
	}
	if err := r.makeHistory(ctx, conn, cfg); err != nil {
		return err
	}
	if cfg.relay.Mode == relay.ModePoll {
		return nil
	}
	for _, names := range cfg.allNames() {
		waiting := r.afterAWhile("still waiting for slot %s: Postgres creates it after a checkpoint, and after all "+
			"transactions that are open now; setup waits at most %s", names.Slot, slotTimeout)
		done, err := replication.Setup(ctx, conn.PgConn(), names, slotTimeout)
		waiting.Stop()
		for _, line := range done {
			r.did("%s", line)
		}
		if err != nil {
			return err
		}
		if len(done) == 0 {
			r.found("publication %s and slot %s: exist, nothing to do", names.Publication, names.Slot)
		}
	}
	return nil
}

func (r *setupReport) makeHistory(ctx context.Context, conn *pgx.Conn, cfg *config) error {
	if cfg.relay.KeepPublished == 0 {
		return nil
	}
	published := cfg.relay.Table.Published()
	made, err := migrations.MakeHistory(ctx, conn, cfg.relay.Table)
	switch {
	case pgcode.Is(err, pgerrcode.InsufficientPrivilege):
		return failure.WithHint(err, cfg.asOwner(conn))
	case err != nil:
		return err
	case !made:
		r.found("history %s: exists, nothing to do", published)
		return nil
	}
	r.did("created history %s for published messages", published)
	return nil
}

func (r *setupReport) makeFunctions(ctx context.Context, conn *pgx.Conn, cfg *config) error {
	if !cfg.functions {
		return nil
	}
	table, role := cfg.relay.Table, cfg.checking.appRole
	foreign, err := migrations.ForeignFunctions(ctx, conn, table)
	if err != nil {
		return err
	}
	changed, err := migrations.MakeFunctions(ctx, conn, table, role)
	if err == nil {
		r.tellForeign(foreign)
	}
	switch {
	case pgcode.Is(err, pgerrcode.InsufficientPrivilege):
		return failure.WithHint(err, cfg.asOwner(conn))
	case err != nil:
		return err
	case !changed:
		r.found("functions of %s: exist, nothing to do", table)
		return nil
	}
	r.did("created functions %[1]s_enqueue, %[1]s_celery, %[1]s_await and %[1]s_cancel of %[2]s", table.Name, table)
	if role != "" {
		r.did("role %q may call them", role)
	}
	return nil
}

// letInsert lets the role of the application insert messages, unless it is to call the functions.
func (r *setupReport) letInsert(ctx context.Context, conn *pgx.Conn, cfg *config) error {
	table, role := cfg.relay.Table, cfg.checking.appRole
	if role == "" || cfg.functions {
		return nil
	}
	var may bool
	err := conn.QueryRow(ctx, `SELECT pg_catalog.has_schema_privilege(r.oid, n.oid, 'USAGE') AND NOT EXISTS (
		SELECT FROM pg_catalog.unnest($4::text[]) c 
		WHERE NOT pg_catalog.has_column_privilege(r.oid, $3::text::regclass::oid, c, 'INSERT'))
		FROM pg_catalog.pg_roles r, pg_catalog.pg_namespace n WHERE r.rolname = $1 AND n.nspname = $2`,
		role, table.Schema, table.SQL(), outbox.InsertColumns()).Scan(&may)
	grantee := outbox.Identifier(role)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return problem.New(
			"CREATE ROLE "+grantee+" LOGIN;  -- or name an existing role in --app-role",
			"role %s of --app-role does not exist", grantee,
		)
	case err != nil:
		return fmt.Errorf("look for the privileges of role %s: %w", grantee, err)
	case may:
		r.found("role %s may insert into %s: nothing to do", grantee, table)
		return nil
	}
	_, err = conn.Exec(ctx, fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s; GRANT INSERT (%s) ON %s TO %[2]s",
		outbox.QuoteIdentifier(table.Schema), outbox.QuoteIdentifier(role),
		strings.Join(outbox.InsertColumns(), ", "), table.SQL()))
	if pgcode.Is(err, pgerrcode.InsufficientPrivilege) {
		return failure.WithHint(err, cfg.asOwner(conn))
	}
	if err != nil {
		return fmt.Errorf("let role %s insert into %s: %w", grantee, table, err)
	}
	r.did("role %s may insert into %s", grantee, table)
	return nil
}

// tellForeign reports functions of other roles with the names of the outbox's own.
func (r *setupReport) tellForeign(foreign []migrations.Foreign) {
	for _, f := range foreign {
		switch {
		case !f.Same:
			r.found(
				"function %s belongs to role %s, and a call could run it: DROP FUNCTION %[1]s;", f.Function, f.Owner,
			)
		case len(f.Grantees) > 0:
			r.did(
				"replaced function %s of role %s; if they need it: GRANT EXECUTE ON FUNCTION %[1]s TO %s;", f.Function,
				f.Owner, strings.Join(f.Grantees, ", "),
			)
		default:
			r.did("replaced function %s of role %s", f.Function, f.Owner)
		}
	}
}

func (p *process) printSetup(cfg *config) error {
	cfg.relay.DatabaseURL = "unused"
	if err := cfg.validate(); err != nil {
		return err
	}
	script, err := migrations.SQL(cfg.relay.Table)
	if err != nil {
		return err
	}
	if cfg.functions {
		functions, err := migrations.FunctionsSQL(cfg.relay.Table, cfg.checking.appRole)
		if err != nil {
			return err
		}
		script += "\nBEGIN;\n" + functions + "COMMIT;\n"
	}
	if cfg.relay.KeepPublished > 0 {
		history, err := migrations.HistorySQL(cfg.relay.Table)
		if err != nil {
			return err
		}
		script += "\nBEGIN;\n" + history + "COMMIT;\n"
	}
	if cfg.relay.Mode == relay.ModeAuto {
		for _, names := range cfg.allNames() {
			script += "\n" + replication.SetupSQL(names)
		}
	}
	_, err = fmt.Fprint(p.terminal.Verbatim(), script, "\n", grants(cfg))
	return err
}

// grants suggests roles, as SQL comments: the administrator chooses their names.
func grants(cfg *config) string {
	table := cfg.relay.Table
	attribute := " REPLICATION"
	if cfg.relay.Mode == relay.ModePoll {
		attribute = ""
	}
	application := "application"
	if cfg.checking.appRole != "" {
		application = outbox.QuoteIdentifier(cfg.checking.appRole)
	}
	schema := outbox.QuoteIdentifier(table.Schema)
	text := fmt.Sprintf(
		"Suggested roles. The relay needs:\n"+
			"CREATE ROLE cdc_relay LOGIN%s PASSWORD '...';\n"+
			"GRANT USAGE ON SCHEMA %s TO cdc_relay;\n",
		attribute, schema,
	)
	for _, need := range store.Needs(table) {
		text += fmt.Sprintf("GRANT %s ON %s TO cdc_relay;", strings.Join(need.Privileges, ", "), need.Table.Printed())
		if need.Table == table.DeadLetter() {
			text += "  -- and DELETE for --dead-letter-retention"
		}
		text += "\n"
	}
	if cfg.relay.KeepPublished > 0 {
		text += fmt.Sprintf(
			"GRANT INSERT ON %s TO cdc_relay;\nGRANT EXECUTE ON FUNCTION %s(interval) TO cdc_relay;\n",
			table.Published().Printed(), table.RotatePublished().Printed(),
		)
	}
	sequence := outbox.Table{Schema: table.Schema, Name: sequenceName(table)}
	text += fmt.Sprintf(`GRANT SELECT ON %s TO cdc_relay;
GRANT SELECT ON SEQUENCE %s TO cdc_relay;
An application needs only:
GRANT USAGE ON SCHEMA %s TO %s;
GRANT INSERT (%[6]s) ON %[5]s TO %[4]s;`,
		migrations.VersionTable(table).Printed(), sequence.Printed(), schema, application, table.Printed(),
		strings.Join(outbox.InsertColumns(), ", "))
	return "-- " + strings.ReplaceAll(text, "\n", "\n-- ") + "\n"
}

// sequenceName returns the name of the sequence behind the identity column id. Postgres cuts the table's name if the
// whole would be too long (makeObjectName).
func sequenceName(table outbox.Table) string {
	const suffix, longest = "_id_seq", 63
	name := table.Name
	for len(name) > longest-len(suffix) {
		_, size := utf8.DecodeLastRuneInString(name)
		name = name[:len(name)-size]
	}
	return name + suffix
}

// asOwner is the hint for a role that may not create or drop objects.
func (c *config) asOwner(conn *pgx.Conn) string {
	at := conn.Config()
	u := url.URL{
		Scheme: "postgres", User: url.User("OWNER"), Host: net.JoinHostPort(at.Host, strconv.Itoa(int(at.Port))),
		Path: "/" + at.Database,
	}
	if strings.HasPrefix(at.Host, "/") { // the folder of a socket
		u.Host, u.RawQuery = "", url.Values{"host": {at.Host}, "port": {strconv.Itoa(int(at.Port))}}.Encode()
	}
	set := "export CDC_RELAY_DATABASE_URL="
	if c.given["database-url"].Source == settings.FromFlag {
		set = "--database-url "
	}
	return fmt.Sprintf(
		"%s%s  # OWNER: that of %s, or a superuser; then run this again", set, problem.ShellWord(u.String()),
		c.relay.Table,
	)
}

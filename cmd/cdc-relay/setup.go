package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/grants"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/terminal"
	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/migrations"
)

// slotTimeout is how long setup waits for the slot: Postgres waits for all open transactions when it creates one.
const slotTimeout = time.Minute

func (p *process) setupCommand() *cli.Command {
	return &cli.Command{
		Name:      "setup",
		Usage:     "create the tables, the publication and the replication slot",
		UsageText: "cdc-relay setup [FLAGS]",
		Description: `Creates what is missing in the database: the outbox table and its dead-letter table, the
publication and the slot. It updates older tables. A second run changes nothing. With
--tables-only (or --mode poll) it creates no publication and no slot. The table
public.outbox_migrations has the version of the tables. With --functions it also creates the
SQL functions outbox_enqueue, outbox_celery, outbox_await and outbox_cancel
(docs/functions.md).

It grants what --relay-role needs, and lets --app-role insert messages, or, with
--functions, call the functions. The roles must exist. It revokes nothing. What the grants
allow: docs/security.md. At the end it prints what "check" would report of the database.

EXAMPLES

  cdc-relay setup --database-url postgres://postgres@localhost/shop
  cdc-relay setup --relay-role cdc_relay --app-role shop_app
  cdc-relay setup --relay-role cdc_relay --print-sql > setup.sql     # for a DBA
  cdc-relay setup --tables-only --print-sql | psql -v ON_ERROR_STOP=1 DATABASE
  cdc-relay setup --functions --app-role shop_app
  cdc-relay setup --table 'billing."Out.Box"' --slot billing --publication billing
  cdc-relay setup --shards 4                  # slots and publications for run --shard 0/4 to 3/4`,
		Flags: describe(flags(
			"database-url", "table", "tables-only", "owner", "slot", "publication", "shard", "shards", "failover-slot",
			"mode", "functions", "relay-role", "app-role", "app-insert-only", "keep-published", "dead-letter-retention",
			"print-sql", "json", "config",
		), usages{
			"relay-role": "The role of the relay: grant what it needs.",
			"app-role": "The role of the application: let it insert messages, or with --functions call the " +
				"functions. Several roles: with commas, or the flag again.",
			"dead-letter-retention": "That of the relays: their role may then delete dead letters.",
			"print-sql":             "Print the SQL: for psql, with --tables-only for any tool. It needs no database.",
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
	if err := made.setUp(c.Context, conn, cfg); err != nil {
		return made.end(cfg.ownerHint(err, conn))
	}
	made.examine(c.Context, cfg)
	return made.end(nil)
}

// examine reports what check would report, except that no relay runs yet.
func (r *setupReport) examine(ctx context.Context, cfg *config) {
	own := *cfg
	own.checking.relayRole = "" // nobody says that this role may act as the relay's
	options := checkOptions(&own)
	options.Operator, options.Poll, options.RabbitMQ = true, !cfg.streams(), amqpdial.Address{}
	worse, _ := doctor.Split(doctor.Examine(ctx, options))
	for _, f := range worse {
		if f.Name != "active" {
			r.warn("%s %s %s: %s", f.Level, f.Area, f.Name, strings.Join(append([]string{f.Message}, f.Fix...), "\n  "))
		}
	}
}

// setupView is the JSON output of setup.
type setupView struct {
	Table   string `json:"table"`
	Version int    `json:"version"` // of the tables; 0: none
	// Done says in words what was created; empty: nothing was missing.
	Done []string `json:"done"`
	// Warnings are what check would report, and privileges of roles that setup can not or need not grant.
	Warnings []string `json:"warnings,omitempty"`
	Error    string   `json:"error,omitempty"`
}

// setupReport prints each step at once, or all steps as JSON at the end, or logs what changed.
type setupReport struct {
	terminal terminal.Terminal
	json     bool
	log      *slog.Logger // nil: none
	view     setupView
}

func (p *process) newSetupReport(cfg *config) *setupReport {
	return &setupReport{
		terminal: p.terminal,
		json:     cfg.json,
		view:     setupView{Table: cfg.relay.Table.String(), Done: []string{}},
	}
}

// did reports a change.
func (r *setupReport) did(format string, args ...any) {
	change := fmt.Sprintf(format, args...)
	r.view.Done = append(r.view.Done, change)
	r.found("%s", change)
	if r.log != nil {
		r.log.Info("setup changed the database", "event", event.SetupChanged, "change", change)
	}
}

// warn reports what a person should look at.
func (r *setupReport) warn(format string, args ...any) {
	warning := fmt.Sprintf(format, args...)
	r.view.Warnings = append(r.view.Warnings, warning)
	r.found("%s", warning)
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
	if err := r.checkRoles(ctx, conn, cfg); err != nil {
		return err
	}
	if err := r.setUpTables(ctx, conn, cfg); err != nil {
		return err
	}
	if err := r.makeFunctions(ctx, conn, cfg); err != nil {
		return err
	}
	if cfg.streams() {
		if err := r.makeSlots(ctx, conn, cfg); err != nil {
			return err
		}
	}
	return r.grantAll(ctx, conn, cfg)
}

// setUpTables creates the tables and the history. It first checks what could fail later.
func (r *setupReport) setUpTables(ctx context.Context, conn *pgx.Conn, cfg *config) error {
	if cfg.streams() {
		for _, names := range cfg.allNames() {
			if err := provision.CheckBefore(ctx, conn.PgConn(), names); err != nil {
				return err
			}
		}
	}
	if err := r.upgrade(ctx, conn, cfg); err != nil {
		return err
	}
	return r.makeHistory(ctx, conn, cfg)
}

// upgrade runs the migrations and reports what it did.
func (r *setupReport) upgrade(ctx context.Context, conn *pgx.Conn, cfg *config) error {
	table, owner := cfg.relay.Table, cfg.relay.TableOwner
	if err := pgdial.CheckVersion(pgdial.Version(conn.PgConn())); err != nil {
		return err
	}
	made, err := migrations.Restore(ctx, conn, table, owner)
	if err != nil {
		return err
	}
	for _, t := range made {
		r.did("created table %s again: it was missing", t)
	}
	from, to, err := migrations.Up(ctx, conn, table, owner)
	if err != nil {
		return err
	}
	r.view.Version = to
	switch from {
	case to:
		r.found("tables of %s: version %d, nothing to do", table, to)
	case 0:
		r.did("created tables %s and %s (version %d)", table, table.DeadLetter(), to)
	default:
		r.did("updated tables of %s from version %d to %d", table, from, to)
	}
	return nil
}

func (r *setupReport) makeSlots(ctx context.Context, conn *pgx.Conn, cfg *config) error {
	for _, names := range cfg.allNames() {
		waiting := r.afterAWhile("still waiting for slot %s: Postgres creates it after a checkpoint, and after all "+
			"transactions that are open now; setup waits at most %s", names.Slot, slotTimeout)
		done, err := provision.Setup(ctx, conn.PgConn(), names, slotTimeout)
		waiting.Stop()
		for _, line := range done {
			r.did("%s", line.Text)
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
	table := cfg.relay.Table
	foreign, err := migrations.ForeignFunctions(ctx, conn, table)
	if err != nil {
		return err
	}
	changed, err := migrations.MakeFunctions(ctx, conn, table)
	if err != nil {
		return err
	}
	r.tellForeign(foreign)
	if !changed {
		r.found("functions of %s: exist, nothing to do", table)
		return nil
	}
	r.did("created functions %[1]s_enqueue, %[1]s_celery, %[1]s_await and %[1]s_cancel of %[2]s", table.Name, table)
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
	script, err := migrations.SQL(cfg.relay.Table, cfg.relay.TableOwner)
	if err != nil {
		return err
	}
	tables := len(script)
	if cfg.functions {
		functions, err := migrations.FunctionsSQL(cfg.relay.Table)
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
	if cfg.streams() {
		for _, names := range cfg.allNames() {
			script += "\n" + provision.SetupSQL(names)
		}
	}
	if len(script) > tables { // a publication of a superuser says that the owner of the tables is trusted
		script = "\\set ON_ERROR_STOP on\n" + script
	}
	_, err = fmt.Fprint(p.terminal.Verbatim(), script, grantsSQL(cfg))
	return err
}

// ownerHint adds the hint to an error that says which role may create, change and drop what belongs to the outbox. The
// role of the session may be an application's: it gets no more privileges. A GRANT that the error has stays.
func (c *config) ownerHint(err error, conn *pgx.Conn) error {
	if pgcode.Is(err, pgerrcode.DuplicateTable) {
		return failure.WithHint(err, "# rename what is in the way, or choose another name by --table")
	}
	var found *problem.Problem
	hasGrant := errors.As(err, &found) && found.Denied
	mayNot := errors.Is(err, provision.ErrMayNot) || errors.Is(err, grants.ErrDenied)
	if hasGrant || !mayNot && !pgcode.Is(err, pgerrcode.InsufficientPrivilege) {
		return err
	}
	set := "export CDC_RELAY_DATABASE_URL="
	if c.given["database-url"].Source == settings.FromFlag {
		set = "--database-url "
	}
	return failure.WithHint(err, fmt.Sprintf(
		"%s%s  # OWNER: that of %s, of the database, or a superuser; then run this again",
		set, ownersURL(&conn.Config().Config), c.relay.Table))
}

// ownersURL is an address for another user, as a word of the shell.
func ownersURL(at *pgconn.Config) string {
	u := url.URL{
		Scheme: "postgres", User: url.User("OWNER"), Host: net.JoinHostPort(at.Host, strconv.Itoa(int(at.Port))),
		Path: "/" + at.Database,
	}
	if strings.HasPrefix(at.Host, "/") { // the folder of a socket
		u.Host, u.RawQuery = "", url.Values{"host": {at.Host}, "port": {strconv.Itoa(int(at.Port))}}.Encode()
	}
	return problem.ShellWord(u.String())
}

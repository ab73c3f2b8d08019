package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
)

func (p *process) migrateCommand() *cli.Command {
	return &cli.Command{
		Name:      "migrate",
		Usage:     "create or update only the tables, without publication and slot",
		UsageText: "cdc-relay migrate up|status|sql [FLAGS]",
		Description: `Numbered steps create and update the tables. The table public.outbox_migrations has the
number of the last step. A newer cdc-relay says at its start if a step is missing.`,
		Subcommands: []*cli.Command{
			{
				Name:      "up",
				Usage:     "run the steps that are missing",
				UsageText: "cdc-relay migrate up [FLAGS]",
				Description: `Creates the tables if they are missing, and updates them. A second run changes nothing.
The role needs CREATE on the schema, and becomes the owner of the tables.`,
				Flags:  flags("format", "database-url", "table", "owner", "config"),
				Action: p.migrateUp,
			},
			{
				Name:      "status",
				Usage:     "show the version of the tables",
				UsageText: "cdc-relay migrate status [FLAGS]",
				Description: `Shows the version of the tables and the missing steps. The role needs only SELECT on the
version table.`,
				Flags:  flags("format", "database-url", "table", "owner", "config"),
				Action: p.migrateStatus,
			},
			{
				Name:      "sql",
				Usage:     "print the SQL for psql",
				UsageText: "cdc-relay migrate sql [FLAGS] | psql DATABASE",
				Description: `Prints a psql script for a DBA that does the same as "migrate up". The script finds out
which steps are missing and records the version. This command needs no database.`,
				Flags:  flags("table", "owner", "config"),
				Action: p.migrateSQL,
			},
		},
	}
}

func (p *process) migrateUp(c *cli.Context) error {
	cfg, conn, err := p.openDatabase(c, "migrate")
	if err != nil {
		return err
	}
	defer closeConn(c.Context, conn)
	made := p.newSetupReport(cfg)
	return made.end(made.upgrade(c.Context, conn, cfg))
}

// upgrade runs the migrations and reports what it did.
func (r *setupReport) upgrade(ctx context.Context, conn *pgx.Conn, cfg *config) error {
	table, owner := cfg.relay.Table, cfg.relay.TableOwner
	if err := pgdial.CheckVersion(pgdial.Version(conn.PgConn())); err != nil {
		return err
	}
	made, err := migrations.Restore(ctx, conn, table, owner)
	if err != nil {
		return migrationError(err, conn, table)
	}
	for _, t := range made {
		r.did("created table %s again: it was missing", t)
	}
	from, to, err := migrations.Up(ctx, conn, table, owner)
	if err != nil {
		return migrationError(err, conn, table)
	}
	r.view.Version = to
	switch from {
	case to:
		r.found("tables of %s: version %d, nothing to do", table, to)
	case 0:
		r.did("created tables %s and %s (version %d)", table, table.DeadLetter(), to)
	default:
		r.did("brought tables of %s from version %d to %d", table, from, to)
	}
	return nil
}

// statusView is the JSON output of migrate status.
type statusView struct {
	Table   string `json:"table"`
	Version int    `json:"version"` // 0: the tables do not exist
	Latest  int    `json:"latest"`
	// Missing are the steps that "migrate up" would run.
	Missing []string `json:"missing"`
}

func (p *process) migrateStatus(c *cli.Context) error {
	cfg, conn, err := p.openDatabase(c, "migrate")
	if err != nil {
		return err
	}
	defer closeConn(c.Context, conn)
	table := cfg.relay.Table
	state, err := migrations.Status(c.Context, conn, table, cfg.relay.TableOwner)
	if err != nil {
		return migrationError(err, conn, table)
	}
	if cfg.format == formatJSON {
		view := statusView{Table: table.String(), Version: state.Current, Latest: state.Latest, Missing: []string{}}
		for _, step := range state.Pending {
			view.Missing = append(view.Missing, step.Name)
		}
		return p.terminal.JSON(view)
	}
	switch {
	case len(state.Pending) == 0:
		fmt.Fprintf(p.terminal.Out, "tables of %s: version %d, up to date\n", table, state.Current)
	case state.Current == 0:
		fmt.Fprintf(p.terminal.Out, "tables of %s: none\n", table)
	default:
		fmt.Fprintf(p.terminal.Out, "tables of %s: version %d of %d\n", table, state.Current, state.Latest)
	}
	for _, step := range state.Pending {
		fmt.Fprintf(p.terminal.Out, "  missing: %s\n", step.Name)
	}
	return nil
}

func (p *process) migrateSQL(c *cli.Context) error {
	cfg, err := p.resolve(c)
	if err != nil {
		return err
	}
	script, err := migrations.SQL(cfg.relay.Table, cfg.relay.TableOwner)
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(p.terminal.Verbatim(), script)
	return err
}

// migrationError adds hints to known errors.
func migrationError(err error, conn *pgx.Conn, table outbox.Table) error {
	user := outbox.QuoteIdentifier(conn.Config().User)
	schema := outbox.QuoteIdentifier(table.Schema)
	switch pgcode.Of(err) {
	case pgerrcode.InsufficientPrivilege:
		return failure.WithHint(err, fmt.Sprintf("GRANT CREATE, USAGE ON SCHEMA %s TO %s;  -- or run the output of "+
			"\"cdc-relay migrate sql\" as the owner of the database, and then GRANT SELECT ON %s TO %s",
			schema, user, migrations.VersionTable(table).Printed(), user))
	case pgerrcode.DuplicateTable:
		return failure.WithHint(err, "# rename what is in the way, or choose another name by --table")
	case pgerrcode.ReadOnlySQLTransaction:
		return failure.WithHint(err, "# name the primary in --database-url (CDC_RELAY_DATABASE_URL), not a standby")
	}
	return err
}

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/adopt"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/migrations"
)

func (p *process) teardownCommand() *cli.Command {
	return &cli.Command{
		Name:      "teardown",
		Usage:     "drop the slot and the publication; with --tables also tables and functions",
		UsageText: "cdc-relay teardown [FLAGS]",
		Description: `Drops what "setup" created. Stop the relays first. Use it when you remove cdc-relay: a slot
that nobody reads retains WAL until the disk is full. It asks before it drops. It never
drops messages: --tables fails while the tables contain messages or dead letters.

EXAMPLES

  cdc-relay teardown
  cdc-relay teardown --yes --tables
  cdc-relay teardown --shards 4               # what "setup --shards 4" created`,
		Flags: describe(
			flags("database-url", "table", "owner", "slot", "publication", "shard", "shards", "yes", "tables",
				"config"),
			usages{"yes": doNotAsk},
		),
		Action: p.teardown,
	}
}

func (p *process) teardown(c *cli.Context) error {
	cfg, conn, err := p.openDatabase(c, "teardown")
	if err != nil {
		return err
	}
	defer closeConn(c.Context, conn)
	others, err := provision.SlotsBeside(c.Context, conn.PgConn(), cfg.allNames()...)
	if err != nil {
		return err
	}
	if err := mayDropTables(c.Context, conn, cfg); err != nil {
		return err
	}
	if !cfg.yes {
		if err := p.confirm(c.Context, cfg, conn); err != nil {
			return err
		}
		if err := mayDropTables(c.Context, conn, cfg); err != nil { // the question took a while: check again
			return err
		}
	}
	done, err := provision.Teardown(c.Context, conn.PgConn(), cfg.allNames()...)
	if err == nil && len(done) == 0 && len(others) > 0 {
		return provision.LeftBehind(cfg.allNames()[0], others)
	}
	if err == nil && len(done) == 0 {
		done = append(done, cfg.slotsAndPublications()+": not there")
	}
	for _, line := range done {
		fmt.Fprintln(p.terminal.Out, line)
	}
	if err != nil || !cfg.tables {
		return cfg.ownerHint(err, conn)
	}
	return p.dropTables(c, conn, cfg)
}

// mayDropTables fails while the tables contain messages, or if slots would remain without a table, also those of other
// shards.
func mayDropTables(ctx context.Context, conn *pgx.Conn, cfg *config) error {
	if !cfg.tables {
		return nil
	}
	beside, err := provision.SlotsBeside(ctx, conn.PgConn(), cfg.allNames()...)
	if err != nil {
		return err
	}
	if len(beside) > 0 {
		return provision.LeftBehind(cfg.allNames()[0], beside)
	}
	adopted, err := adopt.List(ctx, conn, cfg.relay.Table)
	if err != nil {
		return err
	}
	if len(adopted) > 0 {
		return problem.New("cdc-relay adopt --undo --from "+problem.ShellWord(adopted[0].Table.String()),
			"rows of %s go to %s: no table was dropped", adopted[0].Table, cfg.relay.Table)
	}
	return emptyHint(migrations.CheckEmpty(ctx, conn, cfg.relay.Table, cfg.relay.TableOwner))
}

func (p *process) dropTables(c *cli.Context, conn *pgx.Conn, cfg *config) error {
	dropped, err := migrations.Drop(c.Context, conn, cfg.relay.Table, cfg.relay.TableOwner)
	switch {
	case err != nil:
		return cfg.ownerHint(emptyHint(err), conn)
	case dropped:
		fmt.Fprintf(p.terminal.Out, "dropped tables %s and %s\n", cfg.relay.Table, cfg.relay.Table.DeadLetter())
	default:
		fmt.Fprintf(p.terminal.Out, "tables of %s: not there\n", cfg.relay.Table)
	}
	return nil
}

func emptyHint(err error) error {
	var full *migrations.NotEmptyError
	if !errors.As(err, &full) {
		return err
	}
	return failure.WithHint(
		err, "cdc-relay drain; cdc-relay list --state dead  # then resend or delete the dead letters",
	)
}

// slotsAndPublications names what setup created besides the tables.
func (c *config) slotsAndPublications() string {
	all := c.allNames()
	if len(all) == 1 {
		return fmt.Sprintf("slot %s and publication %s", all[0].Slot, all[0].Publication)
	}
	last := all[len(all)-1]
	return fmt.Sprintf(
		"slots %s to %s and publications %s to %s", all[0].Slot, last.Slot, all[0].Publication, last.Publication,
	)
}

func (p *process) confirm(ctx context.Context, cfg *config, conn *pgx.Conn) error {
	what := cfg.slotsAndPublications()
	if cfg.tables {
		what += fmt.Sprintf(
			" and tables %s and %s (with the history, if there is one)", cfg.relay.Table, cfg.relay.Table.DeadLetter(),
		)
	}
	question := fmt.Sprintf("Drop %s at %s?", what, where(conn.Config()))
	return p.terminal.Confirm(ctx, p.terminal.Out, question, "nothing was dropped")
}

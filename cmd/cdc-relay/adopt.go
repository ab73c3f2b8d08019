package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/adopt"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// adoptFlags are the flags that only adopt reads.
type adoptFlags struct {
	from       *outbox.Table
	set        []string
	waiting    string
	only       string
	view, undo bool
}

func adoptSettings() []setting {
	return []setting{
		settings.FlagOnly(settings.Func("from", "NAME", "",
			"The table to adopt, written as in SQL. Default: its usual name, such as celery_outbox; "+
				"with --undo the only adopted one.",
			func(c *config, text string) error {
				table, err := outbox.ParseName(text)
				c.adopting.from = &table
				return err
			})),
		settings.FlagOnly(settings.Texts("set", "COLUMN=SQL",
			"What becomes of a column of the outbox, of headers.NAME or properties.NAME: "+
				"an SQL expression on the columns of the table, such as \"routing_key=kind || '.new'\". "+
				"Give it once for each.",
			func(c *config) *[]string { return &c.adopting.set }, adopt.CheckSet)),
		settings.FlagOnly(settings.Text("waiting", "CONDITION", "",
			"Which rows of the table are still to be sent, and are moved: "+
				"all, none, or an SQL condition. Needed if the table has rows and its state is not known.",
			func(c *config) *string { return &c.adopting.waiting })),
		settings.FlagOnly(settings.Text("only", "CONDITION", "",
			"Which rows of the table are messages, old and new: an SQL condition. Others stay in the table.",
			func(c *config) *string { return &c.adopting.only })),
		settings.FlagOnly(settings.Switch("view", "Put a view in place of the table, so that nothing is stored twice.",
			func(c *config) *bool { return &c.adopting.view })),
		settings.FlagOnly(settings.Switch("undo",
			"New rows stay in the table again. Rows that were moved are still published.",
			func(c *config) *bool { return &c.adopting.undo })),
	}
}

func (p *process) adoptCommand() *cli.Command {
	command := &cli.Command{
		Name:      "adopt",
		Usage:     "publish the rows of another outbox table, without a change of the application",
		UsageText: "cdc-relay adopt [" + strings.Join(adopt.Layouts(), "|") + "] [FLAGS]",
		Description: `Creates a trigger that moves each new row of another table to the outbox, at COMMIT. Rows that
wait in the table are moved once. Run it again to move waiting rows and to recreate a missing
trigger. The tables of the outbox must exist (setup).
The commands below know their tables; for any other table, --set says what goes where.

EXAMPLES

  cdc-relay adopt debezium --from outboxevent --waiting none
  cdc-relay adopt celery-outbox
  cdc-relay adopt watermill --from watermill_orders
  cdc-relay adopt --from events --set routing_key=topic --set payload=body --waiting none
  cdc-relay adopt debezium --print-sql > adopt.sql   # for a DBA
  cdc-relay adopt --undo --from events`,
		Flags:  flagsOfAdopt(),
		Action: p.adopt(""),
	}
	for _, layout := range adopt.Layouts() {
		command.Subcommands = append(command.Subcommands, &cli.Command{
			Name:        layout,
			Usage:       adopt.Usage(layout),
			UsageText:   "cdc-relay adopt " + layout + " [FLAGS]",
			Description: "As \"cdc-relay adopt\", for " + adopt.Usage(layout) + ".\n--set changes what goes where.",
			Flags:       flagsOfAdopt(),
			Action:      p.adopt(layout),
		})
	}
	return command
}

// adoptFlagsOf returns the flags of the parent command that a layout does not define itself.
func adoptFlagsOf(parent *cli.Context) []cli.Flag {
	return slices.DeleteFunc(slices.Clone(parent.Command.Flags), func(f cli.Flag) bool {
		_, ours := f.(*settings.Flag)
		return !ours
	})
}

func flagsOfAdopt() []cli.Flag {
	return describe(
		flags(
			"database-url", "table", "owner", "from", "set", "waiting", "only", "view", "undo", "print-sql", "config",
		),
		usages{"print-sql": "Print the SQL for psql instead of running it."},
	)
}

func (p *process) adopt(layout string) cli.ActionFunc {
	return func(c *cli.Context) error {
		if layout != "" && slices.ContainsFunc(adoptFlagsOf(c.Lineage()[1]), cli.Flag.IsSet) {
			return usagef("adopt: flags go after %s", layout)
		}
		cfg, conn, err := p.openDatabase(c, "adopt")
		if err != nil {
			return err
		}
		defer closeConn(c.Context, conn)
		if err := migrations.CheckOwners(c.Context, conn, cfg.relay.Table, cfg.relay.TableOwner); err != nil {
			return err
		}
		if cfg.adopting.undo {
			return p.undoAdoption(c, conn, cfg)
		}
		request, err := adoptRequest(c, conn, cfg, layout)
		if err != nil {
			return err
		}
		if cfg.printSQL {
			script, err := adopt.SQL(c.Context, conn, request)
			if err != nil {
				return cfg.ownerHint(err, conn)
			}
			_, err = fmt.Fprint(p.terminal.Verbatim(), script)
			return err
		}
		result, err := adopt.Adopt(c.Context, conn, request)
		if result.Moved > 0 {
			fmt.Fprintf(
				p.terminal.Out, "moved %s from %s to %s\n", show.Plural(result.Moved, "row"), request.From,
				request.Outbox,
			)
		}
		if err != nil {
			return cfg.ownerHint(err, conn)
		}
		if !result.Attached {
			fmt.Fprintf(p.terminal.Out, "table %s: adopted before\n", request.From)
			return nil
		}
		fmt.Fprintf(p.terminal.Out, "adopted table %s: new rows go to %s at COMMIT\n", request.From, request.Outbox)
		return nil
	}
}

func adoptRequest(c *cli.Context, conn *pgx.Conn, cfg *config, layout string) (adopt.Request, error) {
	r := adopt.Request{
		Outbox: cfg.relay.Table, Owner: cfg.relay.TableOwner, Layout: layout,
		Set: cfg.adopting.set, View: cfg.adopting.view,
		Waiting: strings.TrimSpace(cfg.adopting.waiting), Only: strings.TrimSpace(cfg.adopting.only),
	}
	switch from := cfg.adopting.from; {
	case layout == "" && len(r.Set) == 0:
		return r, usagef("adopt: --set is not set, nor one of %s given", strings.Join(adopt.Layouts(), ", "))
	case from != nil:
		r.From = *from
		return r, nil
	case layout == "":
		return r, usagef("adopt: --from is not set: it is the table to adopt")
	}
	var err error
	r.From, err = adopt.UsualTable(c.Context, conn, layout)
	return r, err
}

func (p *process) undoAdoption(c *cli.Context, conn *pgx.Conn, cfg *config) error {
	adopted, err := adopt.Find(c.Context, conn, cfg.relay.Table, cfg.adopting.from)
	if err != nil {
		return err
	}
	if cfg.printSQL {
		_, err := fmt.Fprint(p.terminal.Verbatim(), adopted.UndoSQL())
		return err
	}
	if err := adopted.Undo(c.Context, conn); err != nil {
		return cfg.ownerHint(err, conn)
	}
	fmt.Fprintf(p.terminal.Out, "table %s keeps its new rows again\n", adopted.Table)
	return nil
}

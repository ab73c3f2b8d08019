package provision

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Each outbox of a database has its own publication and slot. The slot has no table; usually it has the name of its
// publication.

// OtherOutboxesSQL is a query for up to five other outboxes in a publication, as JSON. The arguments are SQL
// expressions; schema and table name the outbox to leave out.
func OtherOutboxesSQL(publication, schema, table string) string {
	return `SELECT coalesce(pg_catalog.json_agg(o.name), '[]') FROM (
  SELECT pg_catalog.json_build_object('Schema', t.schemaname, 'Name', t.tablename) AS name
    FROM pg_catalog.pg_publication_tables t
  JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename AND ` + catalog.IsOutbox + `
  WHERE t.pubname = ` + publication + ` AND NOT (t.schemaname = ` + schema + ` AND t.tablename = ` + table + `)
  ORDER BY t.schemaname, t.tablename LIMIT 5) o`
}

// otherOutboxes returns other outboxes in a publication.
func otherOutboxes(
	ctx context.Context, conn *pgconn.PgConn, publication string, table outbox.Table,
) (others []outbox.Table, err error) {
	literal := outbox.QuoteLiteral
	sql := OtherOutboxesSQL(literal(publication), literal(table.Schema), literal(table.Name))
	rows, err := slot.Query(ctx, conn, sql)
	if err == nil {
		err = json.Unmarshal([]byte(rows[0][0]), &others)
	}
	if err != nil {
		return nil, fmt.Errorf("read the tables of publication %q: %w", publication, err)
	}
	return others, nil
}

// CheckNames returns a *problem.Problem if publication or slot belong to another outbox, or if a relay of another one
// owns the slot now.
func CheckNames(ctx context.Context, conn *pgconn.PgConn, names Names) error {
	if err := checkNames(ctx, conn, names); err != nil {
		return err
	}
	s, err := slot.Read(ctx, conn, names.Slot)
	if taken := s.Taken(names.Table); err == nil && taken != nil {
		return taken
	}
	return err
}

func checkNames(ctx context.Context, conn *pgconn.PgConn, names Names) error {
	for _, publication := range slices.Compact([]string{names.Publication, names.Slot}) { // usually one name
		of := names
		of.Publication = publication
		state, err := readPublication(ctx, conn, of)
		if err != nil {
			return err
		}
		if len(state.Outboxes) == 0 {
			continue
		}
		if publication == names.Publication {
			return state.foreign(names)
		}
		return names.foreign("slot "+names.Slot+" has the name of a publication of", state.Outboxes)
	}
	return nil
}

// foreign is the problem that a name belongs to other outboxes.
func (n Names) foreign(what string, others []outbox.Table) *problem.Problem {
	return problem.New(n.OwnSetup()+"  # and run with the same names: each outbox has its own",
		"%s %s, and not %s", what, printed(others), n.Table)
}

// foreign is the problem that the publication belongs to other outboxes. If the table does not exist, one of them may
// be the table under a new name: a publication follows its tables.
func (p Publication) foreign(names Names) *problem.Problem {
	found := names.foreign("publication "+outbox.Identifier(names.Publication)+" publishes", p.Outboxes)
	if p.NoTable {
		moved := p.Outboxes[0]
		found.What += ", which does not exist: if it was renamed or moved, its messages are there"
		found.Fix = fmt.Sprintf("%s  -- or use --table %s; for another outbox: %s",
			problem.MoveSQL(moved, names.Table), problem.ShellWord(moved.String()), names.OwnSetup())
	}
	return found
}

func printed(tables []outbox.Table) string {
	all := make([]string, len(tables))
	for i, t := range tables {
		all[i] = t.String()
	}
	return strings.Join(all, ", ")
}

// OwnSetup returns the command that gives the table a slot and a publication of its own.
func (n Names) OwnSetup() string {
	command, name := "cdc-relay setup", ownName(n.Table)
	if n.Table != (outbox.Table{Schema: "public", Name: "outbox"}) {
		command += " --table " + problem.ShellWord(n.Table.String())
	}
	if n.Shard.Of > 1 {
		command += " --shard " + n.Shard.String()
	}
	return command + " --slot " + name + " --publication " + name
}

// ownName suggests a name for slot and publication of a table. A hash keeps different tables apart, if the words of two
// tables can be the same. The name leaves room for the suffix of a shard.
func ownName(table outbox.Table) string {
	const longest = 40
	words, exact := table.Schema+"_"+table.Name, !strings.Contains(table.Schema, "_")
	if table.Schema == "public" {
		words, exact = table.Name, !strings.Contains(table.Name, "_")
	}
	name := "cdc_relay_" + strings.Map(func(r rune) rune {
		if r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' {
			return r
		}
		exact = false
		return '_'
	}, words)
	if exact && len(name) <= longest {
		return name
	}
	hash := sha256.Sum256([]byte(table.SQL()))
	return fmt.Sprintf("%s_%x", name[:min(len(name), longest-9)], hash[:4])
}

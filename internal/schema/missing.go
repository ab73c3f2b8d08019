package schema

import (
	"context"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Missing is the problem that a table of an outbox does not exist. The name may be mistyped, so it names the outboxes
// of the database. It asks by a pool or a connection.
func (u Use) Missing(ctx context.Context, db Querier, missing outbox.Table, database string) *problem.Problem {
	found := problem.New(u.setup(missing), "table %s does not exist in database %s", missing, database)
	if missing != u.Table {
		return found
	}
	which, meant := Others(u.Table, outboxes(ctx, db))
	found.What += which
	if which == "" {
		found.Fix = problem.Noted(found.Fix, "if "+outbox.Identifier(database)+" is the right database; "+
			"else correct --database-url (CDC_RELAY_DATABASE_URL)")
	}
	if meant != "" {
		found.Fix = meant + "; else: " + found.Fix
	}
	return found
}

// Others says which outboxes the database has in place of a table that does not exist; "": none. Meant is a hint: the
// name may be mistyped.
func Others(table outbox.Table, others []outbox.Table) (which, meant string) {
	if len(others) == 0 || slices.Contains(others, table) {
		return "", ""
	}
	names := make([]string, len(others))
	for i, other := range others {
		names[i] = other.String()
	}
	return ", which has " + strings.Join(names, ", "),
		"# --table " + problem.ShellWord(names[0]) + ", if that is meant"
}

// OutboxesSQL lists up to five outboxes of the database, by schema and name.
const OutboxesSQL = `
SELECT n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE ` + catalog.IsOutbox + ` ORDER BY 1, 2 LIMIT 5`

// outboxes returns those of OutboxesSQL; none if they cannot be read.
func outboxes(ctx context.Context, db Querier) []outbox.Table {
	rows, _ := db.Query(ctx, OutboxesSQL) // its error is also that of the rows
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[outbox.Table])
	if err != nil {
		return nil
	}
	return found
}

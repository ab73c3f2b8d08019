package schema

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/slot"
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
	if which == "" { // it may be the wrong database
		meant = u.elsewhere(ctx, db)
		found.Fix = problem.Noted(found.Fix,
			"if "+outbox.Identifier(database)+" is the right database; else correct "+inURL)
	}
	if meant != "" {
		found.Fix = meant + "; else: " + found.Fix
	}
	return found
}

const inURL = "--database-url (CDC_RELAY_DATABASE_URL)"

// elsewhere is a hint for another database of the server from which a relay streams; "": there is none.
func (u Use) elsewhere(ctx context.Context, db Querier) string {
	var database string
	err := db.QueryRow(ctx, `
SELECT s.database FROM pg_catalog.pg_replication_slots s
LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid
WHERE s.plugin = $1 AND s.database <> pg_catalog.current_database()
  AND (a.application_name = $2 OR a.pid IS NULL AND s.slot_name LIKE 'cdc\_relay%')
ORDER BY a.pid IS NULL, s.slot_name LIMIT 1`, slot.Plugin, slot.Application(u.Table)).Scan(&database)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("# use database %s in %s, if its outbox is meant: it has a slot of cdc-relay",
		outbox.Identifier(database), inURL)
}

// Others says which outboxes the database has in place of a table that does not exist; "": none. Meant is a hint for a
// name like that of the table; "": none is like it.
func Others(table outbox.Table, others []outbox.Table) (which, meant string) {
	if len(others) == 0 || slices.Contains(others, table) {
		return "", ""
	}
	names := make([]string, len(others))
	for i, other := range others {
		names[i] = other.String()
	}
	for i, other := range others {
		if other.Name == table.Name || alike(other, table) {
			meant = "# --table " + problem.ShellWord(names[i]) + ", if that is meant"
			break
		}
	}
	return ", which has " + strings.Join(names, ", "), meant
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

// alike reports whether one edit of up to two characters turns one name into the other, such as a typing mistake.
func alike(one, other outbox.Table) bool {
	const most = 2
	a, b := strings.ToLower(one.Schema+"."+one.Name), strings.ToLower(other.Schema+"."+other.Name)
	start := 0
	for start < min(len(a), len(b)) && a[start] == b[start] {
		start++
	}
	end := 0
	for end < min(len(a), len(b))-start && a[len(a)-1-end] == b[len(b)-1-end] {
		end++
	}
	return max(len(a), len(b))-start-end <= most
}

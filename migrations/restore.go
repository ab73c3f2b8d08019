package migrations

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Restore creates tables again that were dropped although the recorded version has them, and returns them. It fails if
// a column was dropped or renamed, or a table moved: only a person knows which. Owner is that of CheckOwners.
func Restore(
	ctx context.Context, conn *pgx.Conn, table outbox.Table, owner ...string,
) (made []outbox.Table, err error) {
	state, err := Status(ctx, conn, table, owner...)
	if err != nil || state.Current == 0 {
		return nil, err
	}
	missing, err := missingTables(ctx, conn, table)
	if err != nil {
		return nil, err
	}
	for _, t := range []outbox.Table{table, table.DeadLetter()} {
		if slices.Contains(missing, t) {
			if err := checkMoved(ctx, conn, table, t); err != nil {
				return nil, err
			}
			continue
		}
		if state.Current != Latest {
			continue // Up adds columns to older tables
		}
		if err := CheckColumns(ctx, conn, table, t); err != nil {
			return nil, err
		}
	}
	if len(missing) == 0 {
		return nil, nil
	}
	err = Together(ctx, conn, table, func(tx pgx.Tx) (err error) {
		if made, err = missingTables(ctx, tx, table); err != nil || len(made) == 0 {
			return err
		}
		for _, step := range steps(table, made...)[:state.Current] {
			if _, err := tx.Exec(ctx, step.sql); err != nil {
				return fmt.Errorf("recreate %s: %w", made[0], err)
			}
		}
		return nil
	})
	return made, err
}

// movedSQL finds a table with these columns that lacks what belongs to it: an outbox without a version, or dead letters
// without an outbox. A copy of the rows has no identity column.
const movedSQL = `
SELECT n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't' AND NOT EXISTS (
    SELECT FROM pg_catalog.unnest($1::text[]) w WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a
      WHERE a.attrelid = c.oid AND a.attname = w AND NOT a.attisdropped AND (w <> 'id' OR $2 OR a.attidentity <> '')))
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_class o WHERE o.relnamespace = c.relnamespace AND CASE
    WHEN $2 THEN o.relname::text || '_dead_letter' = c.relname::text
    ELSE o.relname::text = c.relname::text || '_migrations' END) ORDER BY 1, 2 LIMIT 1`

// checkMoved fails if a missing table seems to have been renamed or moved: a new one would strand its rows.
func checkMoved(ctx context.Context, conn *pgx.Conn, table, of outbox.Table) error {
	columns, dead := []string{"id", "routing_key", "ordering_key", "available_at", "possible_duplicate"}, false
	if of == table.DeadLetter() {
		columns, dead = []string{"id", "routing_key", "failure_reason", "dead_at", "possible_duplicate"}, true
	}
	var moved outbox.Table
	err := conn.QueryRow(ctx, movedSQL, columns, dead).Scan(&moved.Schema, &moved.Name)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("look for table %s under another name: %w", of, err)
	}
	beside := fmt.Sprintf("CREATE TABLE %s (version int4)", VersionTable(moved).Printed())
	if dead {
		beside = fmt.Sprintf("ALTER TABLE %s RENAME COLUMN dead_at TO died_at", moved.Printed())
	}
	return problem.New(fmt.Sprintf("%s  -- or, to keep it beside a new one: %s;", problem.MoveSQL(moved, of), beside),
		"table %s does not exist, and %s has its columns: if it was renamed or moved, its messages are there",
		of, moved)
}

// missingTables returns the tables of an outbox that do not exist.
func missingTables(ctx context.Context, db querier, table outbox.Table) (missing []outbox.Table, err error) {
	for _, t := range []outbox.Table{table, table.DeadLetter(), RelayTable(table)} {
		var there bool
		err := db.QueryRow(ctx, "SELECT pg_catalog.to_regclass($1) IS NOT NULL", t.SQL()).Scan(&there)
		if err != nil {
			return nil, fmt.Errorf("look for table %s: %w", t, err)
		}
		if !there {
			missing = append(missing, t)
		}
	}
	return missing, nil
}

// ObjectsSQL lists the objects that can have the name of a table, with the kind as ALTER writes it. A type needs the
// name as well, because a table creates one.
const ObjectsSQL = `
SELECT c.relname AS name, c.relnamespace AS namespace, c.relowner AS owner, c.oid AS relation,
       CASE c.relkind
         WHEN 'r' THEN 'TABLE' WHEN 'p' THEN 'TABLE' WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW'
         WHEN 'f' THEN 'FOREIGN TABLE' WHEN 'S' THEN 'SEQUENCE' WHEN 'c' THEN 'TYPE' ELSE 'INDEX' END AS kind
FROM pg_catalog.pg_class c
UNION ALL
SELECT t.typname, t.typnamespace, t.typowner, 0, CASE t.typtype WHEN 'd' THEN 'DOMAIN' ELSE 'TYPE' END
FROM pg_catalog.pg_type t WHERE t.typrelid = 0 AND t.typcategory <> 'A'`

// WithArticle writes a kind of ObjectsSQL for people: "a view" or "an index".
func WithArticle(kind string) string {
	if kind == "INDEX" {
		return "an index"
	}
	return "a " + strings.ToLower(kind)
}

// CheckColumns returns a *problem.Problem if a table of an outbox lacks a column. The fix renames a column of the same
// type whose name tells that it was the missing one; an older table gets its columns from Up.
func CheckColumns(ctx context.Context, db querier, table, of outbox.Table) error {
	wanted, err := Columns(table, of)
	if err != nil {
		return err
	}
	there := map[string]string{} // their types
	err = db.QueryRow(ctx, `
SELECT coalesce(pg_catalog.jsonb_object_agg(a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod)), '{}')
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2 AND a.attnum > 0 AND NOT a.attisdropped`, of.Schema, of.Name).Scan(&there)
	if err != nil {
		return fmt.Errorf("look for the columns of %s: %w", of, err)
	}
	if len(there) == 0 {
		return nil // the table does not exist
	}
	wanted = slices.DeleteFunc(wanted, func(c Column) bool { return there[c.Name] != "" })
	if len(wanted) == 0 {
		return nil
	}
	fix := strings.Join(Restored(table, of, wanted, there), " ")
	var version int // of a table that is too old; unknown if the role may not read it
	asked := db.QueryRow(ctx, "SELECT coalesce(max(version), 0) FROM "+VersionTable(table).SQL()).Scan(&version)
	if asked == nil && version < Latest {
		fix = problem.Command(table, "setup", "--tables-only")
	}
	names := make([]string, len(wanted))
	for i, c := range wanted {
		names[i] = c.Name
	}
	return problem.New(fix, "table %s has no column %s", of, strings.Join(names, ", "))
}

// Restored returns the statements that bring missing columns back to a table with these columns and types. One is a
// remark if only a person knows whether a column was renamed: waiting rows have their values there. Remarks come last,
// because nothing can follow them in a line.
func Restored(table, of outbox.Table, missing []Column, there map[string]string) (fixes []string) {
	known, _ := Columns(table, of) // missing ones are some of them
	others := maps.Clone(there)    // columns of the application, or renamed ones
	for _, c := range known {
		delete(others, c.Name)
	}
	for _, c := range missing {
		if fix := c.restore(table, of, others); strings.HasPrefix(fix, "--") {
			fixes = append(fixes, fix)
		} else {
			fixes = slices.Insert(fixes, 0, fix)
		}
	}
	return fixes
}

func (c Column) restore(table, of outbox.Table, others map[string]string) string {
	rename := func(from string) string {
		return fmt.Sprintf("ALTER TABLE %s RENAME COLUMN %s TO %s;", of.Printed(), from, outbox.QuoteIdentifier(c.Name))
	}
	similar := false
	for _, name := range slices.Sorted(maps.Keys(others)) {
		switch {
		case others[name] != c.Type:
		case strings.Contains(strings.ToLower(name), c.Name) || len(name) > 3 && strings.Contains(c.Name, name):
			return rename(outbox.QuoteIdentifier(name))
		default:
			similar = true
		}
	}
	if similar {
		return fmt.Sprintf("-- if %s was renamed: %s if it was dropped: %s",
			c.Name, rename("NEW_NAME"), c.Add(table, of))
	}
	return c.Add(table, of)
}

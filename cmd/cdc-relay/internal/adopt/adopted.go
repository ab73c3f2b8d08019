package adopt

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Adopted is a table whose rows go to an outbox.
type Adopted struct {
	Table outbox.Table
	View  bool
	// Command adopts the table again.
	Command string
	// Exists: the table exists. Trigger: it has its trigger. Enabled: the trigger fires.
	Exists, Trigger, Enabled bool
	// LostKey are columns of the primary key of then that the table no longer has: INSERTs fail. Missing are other
	// columns that the function reads and the table no longer has: new rows become dead letters, or stay, if
	// Request.Only reads one.
	LostKey, Missing []string
	// OtherKey: the primary key has other columns than then, so the function can delete a wrong row.
	OtherKey bool
	// Obstacle is why adopt would reject the table now; nil: it would not.
	Obstacle error
	function outbox.Table
}

const listSQL = `
SELECT f.nspname, f.proname, f.note, t.oid IS NOT NULL, coalesce(t.tgenabled IN ('O', 'A'), false)
FROM (SELECT p.oid, n.nspname, p.proname, pg_catalog.obj_description(p.oid, 'pg_proc')::jsonb -> 'adopts' AS note
      FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
      WHERE n.nspname = $1 AND p.prorettype = 'pg_catalog.trigger'::regtype
        AND CASE WHEN pg_catalog.obj_description(p.oid, 'pg_proc') LIKE '{"adopts":{%}' THEN true ELSE false END) f
LEFT JOIN (pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace)
  ON n.nspname = f.note ->> 'schema' AND c.relname = f.note ->> 'table'
LEFT JOIN pg_catalog.pg_trigger t ON t.tgrelid = c.oid AND t.tgfoid = f.oid
WHERE f.note ->> 'outbox' = $2 ORDER BY 1, 2`

// List returns the tables that were adopted into an outbox. It reads only the catalog. Owner is that of
// migrations.CheckOwners.
func List(ctx context.Context, db database, into outbox.Table, owner ...string) ([]Adopted, error) {
	rows, _ := db.Query(ctx, listSQL, into.Schema, into.SQL())
	var notes []note
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a Adopted, err error) {
		var n note
		err = row.Scan(&a.function.Schema, &a.function.Name, &n, &a.Trigger, &a.Enabled)
		a.Table, a.View = outbox.Table{Schema: n.Schema, Name: n.Table}, n.View
		// The note is a COMMENT, which the owner of the function can change, so the command is made from its parts.
		a.Command = Request{
			Outbox: into, From: a.Table, View: n.View, Layout: n.Layout, Set: n.Set, Only: n.Only,
		}.Command()
		notes = append(notes, n)
		return a, err
	})
	if err != nil {
		return nil, fmt.Errorf("look for adopted tables: %w", err)
	}
	for i := range all {
		if err := all[i].examine(ctx, db, into, notes[i], owner); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// examine compares the table with that of the adoption.
func (a *Adopted) examine(ctx context.Context, db database, into outbox.Table, then note, owner []string) error {
	s, err := readSource(ctx, db, a.Table, into)
	if problem.Is(err) {
		return nil // it does not exist
	}
	if err != nil {
		return err
	}
	a.Exists = true
	a.Missing = slices.DeleteFunc(then.Columns,
		func(name string) bool { return !s.lacks(name) || slices.Contains(then.Key, name) && !a.View })
	if a.View {
		return nil // adopt changed the table to a view, and its rows are not deleted
	}
	a.OtherKey = then.Key != nil && !slices.Equal(then.Key, s.key())
	a.LostKey = slices.DeleteFunc(then.Key, func(name string) bool { return !s.lacks(name) })
	a.Obstacle = migrations.CheckSource(ctx, db, into, a.Table, owner...)
	if a.Obstacle == nil {
		a.Obstacle = s.check(Request{Outbox: into, Layout: then.Layout, From: a.Table})
	}
	if a.Obstacle == nil {
		_, a.Obstacle = s.convert(ctx, db, then.Layout, then.Set)
	}
	return nil
}

// Find returns an adopted table by name, or the only one if from is nil.
func Find(ctx context.Context, conn *pgx.Conn, into outbox.Table, from *outbox.Table) (Adopted, error) {
	all, err := List(ctx, conn, into)
	if err != nil {
		return Adopted{}, err
	}
	var names []string
	for _, a := range all {
		names = append(names, a.Table.String())
		if from != nil && a.Table == *from {
			return a, nil
		}
	}
	what := fmt.Sprintf("%d tables were adopted into %s: %s", len(all), into, strings.Join(names, ", "))
	switch {
	case from == nil && len(all) == 1:
		return all[0], nil
	case len(all) == 0:
		return Adopted{}, fmt.Errorf("no table was adopted into %s", into)
	case from != nil:
		what = fmt.Sprintf("table %s was not adopted into %s; adopted were %s", from, into, strings.Join(names, ", "))
	}
	return Adopted{}, problem.New("cdc-relay adopt --undo --from "+shell(names[0])+"  # or another of them", "%s", what)
}

// undo returns the statements of Undo, for one transaction.
func (a Adopted) undo() []string {
	table := a.Table.SQL()
	rename := setAside(a.Table).SQL() + " RENAME TO " + outbox.QuoteIdentifier(a.Table.Name) + ";"
	all := []string{lockTimeout}
	switch {
	case a.View && a.Trigger:
		all = append(all, "DROP VIEW "+table+";", "ALTER TABLE "+rename)
	case a.View && !a.Exists:
		all = append(all, "ALTER TABLE IF EXISTS "+rename)
	case a.Trigger:
		all = append(all, fmt.Sprintf("DROP TRIGGER %s ON %s;", triggerName, table))
	}
	return append(all, "DROP FUNCTION "+a.function.Printed()+"();")
}

// UndoSQL returns what Undo runs, as a script for psql.
func (a Adopted) UndoSQL() string {
	return "\\set ON_ERROR_STOP on\nBEGIN;\n" + strings.Join(a.undo(), "\n") + "\nCOMMIT;\n"
}

// Undo disconnects the table: new rows stay in it. Rows in the outbox stay there and are published.
func (a Adopted) Undo(ctx context.Context, conn *pgx.Conn) error {
	if _, err := locking(ctx, conn, a.Table, a.undo()); err != nil {
		return fmt.Errorf("undo the adoption of %s: %w", a.Table, err)
	}
	return nil
}

// Package migrations creates the tables of an outbox and updates them. The numbered SQL files under sql/ are templates:
// every name in them derives from the name of the outbox table, so several outboxes can share a database.
package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"text/template"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Latest is the version that this relay works with: the number of the newest file under sql/.
const Latest = 1

//go:embed sql/*.sql functions.sql history.sql
var files embed.FS

// State describes the tables of an outbox.
type State struct {
	// Current is the version of the tables; 0: they do not exist.
	Current int
	// Latest is the version that this relay works with.
	Latest int
	// Pending are the migrations still to run, in order.
	Pending []Migration
}

// Migration is one step from a version to the next.
type Migration struct {
	Version int
	// Name is the name of the file, such as 001_outbox.sql.
	Name string
	sql  string
}

// ErrNewer says that a newer relay created the tables.
var ErrNewer = errors.New("the tables are newer than this cdc-relay")

// Up runs the pending migrations. It returns the version before and after. If nothing is pending, it changes nothing
// and only needs to read the version. Concurrent calls wait for one another. Owner is that of CheckOwners.
func Up(ctx context.Context, conn *pgx.Conn, table outbox.Table, owner ...string) (from, to int, err error) {
	state, err := Status(ctx, conn, table, owner...)
	if err != nil || len(state.Pending) == 0 {
		return state.Current, state.Current, err
	}
	from = state.Current
	err = Together(ctx, conn, table, func(tx pgx.Tx) (err error) {
		from, err = migrate(ctx, tx, table, owner)
		return err
	})
	if err != nil {
		return state.Current, state.Current, fmt.Errorf("migrate %s: %w", table, err)
	}
	return from, Latest, nil
}

// migrate runs the steps that are missing, and returns the version before.
func migrate(ctx context.Context, tx pgx.Tx, table outbox.Table, owner []string) (from int, err error) {
	if err := createSchema(ctx, tx, table.Schema); err != nil {
		return 0, err
	}
	versions := VersionTable(table).SQL()
	var missing bool
	err = tx.QueryRow(ctx, "SELECT pg_catalog.to_regclass($1) IS NULL", versions).Scan(&missing)
	if err != nil {
		return 0, err
	}
	lock := "LOCK TABLE " + versions + " IN EXCLUSIVE MODE"
	if missing {
		lock = createVersions(versions)
	}
	if _, err := tx.Exec(ctx, lock); err != nil {
		return 0, err
	}
	if err := CheckOwners(ctx, tx, table, owner...); err != nil {
		return 0, err
	}
	err = tx.QueryRow(ctx, "SELECT coalesce(pg_catalog.max(version), 0) FROM "+versions).Scan(&from)
	if err != nil {
		return 0, err
	}
	for _, step := range steps(table)[from:] {
		if _, err := tx.Exec(ctx, step.sql); err != nil {
			return from, err
		}
	}
	updated, err := tx.Exec(ctx, "UPDATE "+versions+" SET version = $1", Latest)
	if err == nil && updated.RowsAffected() == 0 { // somebody has emptied the table
		_, err = tx.Exec(ctx, "INSERT INTO "+versions+" (version) VALUES ($1)", Latest)
	}
	return from, err
}

// createVersions creates the version table, which leaders lock. It has no index: REINDEX CONCURRENTLY would lock it
// until all older transactions have ended. Without a replica identity, a publication FOR ALL TABLES lets no row be
// updated. If ended_well is EndedWell, only rows with ids up to older may have been published before.
func createVersions(versions string) string {
	return fmt.Sprintf("CREATE TABLE %[1]s (version int4, ended_well uuid, older int8);\n"+
		"ALTER TABLE %[1]s REPLICA IDENTITY FULL;\n"+
		"INSERT INTO %[1]s VALUES (0, %[2]s, -9223372036854775808)", versions, EndedWell(versions))
}

// EndedWell is the word of a leader that has ended with nothing on its way, as SQL. It is true only until the server
// restarts, and only in this table: after a crash, a failover or a restore, it means nothing. Versions is SQL.
func EndedWell(versions string) string {
	return "pg_catalog.md5(pg_catalog.concat_ws(' ', extract(epoch FROM pg_catalog.pg_postmaster_start_time()), " +
		QuoteLiteral(versions) + "::pg_catalog.regclass::pg_catalog.oid, (SELECT oid FROM pg_catalog.pg_database " +
		"WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database())))::pg_catalog.uuid"
}

// Status returns the version of the tables. It needs only SELECT on the version table. It fails if objects with the
// names of the outbox are not ours (CheckOwners).
func Status(ctx context.Context, db beginner, table outbox.Table, owner ...string) (State, error) {
	if err := checkName(table); err != nil {
		return State{}, err
	}
	current, err := readVersion(ctx, db, table, owner)
	if err != nil {
		return State{}, err
	}
	state := State{Current: current, Latest: Latest}
	if state.Current > Latest {
		what := fmt.Sprintf("table %s has version %d, and the newest known one is %d", table, state.Current, Latest)
		return state, &problem.Problem{
			What: what,
			Fix:  "# install the newer cdc-relay that updated the tables",
			Err:  ErrNewer,
		}
	}
	state.Pending = steps(table)[current:]
	return state, nil
}

// readVersion locks the table before it looks whose it is: afterwards nobody can put another one in its place.
func readVersion(ctx context.Context, db beginner, table outbox.Table, owner []string) (version int, err error) {
	versions := VersionTable(table)
	err = inPath(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "LOCK TABLE "+versions.SQL()+" IN ACCESS SHARE MODE"); err != nil {
			return err
		}
		if err := CheckOwners(ctx, tx, table, owner...); err != nil {
			return err
		}
		var hiddenFrom *string
		err := tx.QueryRow(ctx, "SELECT CASE WHEN pg_catalog.row_security_active($1::text) "+
			"THEN pg_catalog.quote_ident(current_user) END", versions.SQL()).Scan(&hiddenFrom)
		if err == nil && hiddenFrom != nil {
			err = problem.HiddenRows(versions, *hiddenFrom)
		}
		if err != nil {
			return err
		}
		return tx.QueryRow(ctx, "SELECT coalesce(pg_catalog.max(version), 0) FROM "+versions.SQL()).Scan(&version)
	})
	if err == nil || pgcode.Of(err) == "" {
		return version, err
	}
	if found := CheckOwners(ctx, db, table, owner...); found != nil {
		return 0, found
	}
	if pgcode.Is(err, pgerrcode.UndefinedTable, pgerrcode.InvalidSchemaName) {
		return 0, nil
	}
	return 0, fmt.Errorf("read version from %s: %w", versions, Blocked(ctx, db, err, versions))
}

// createSchema first checks if the schema exists: CREATE SCHEMA IF NOT EXISTS needs the privilege to create a schema
// even if it exists.
func createSchema(ctx context.Context, tx pgx.Tx, schema string) error {
	var exists bool
	const sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)"
	err := tx.QueryRow(ctx, sql, schema).Scan(&exists)
	if err != nil {
		return fmt.Errorf("look for schema %q: %w", schema, err)
	}
	if exists {
		return nil
	}
	if _, err := tx.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+outbox.QuoteIdentifier(schema)); err != nil {
		return fmt.Errorf("create schema %q: %w", schema, err)
	}
	return nil
}

// steps returns the migrations of an outbox, which create all tables, or only the given ones.
func steps(table outbox.Table, only ...outbox.Table) []Migration {
	names, err := fs.Glob(files, "sql/*.sql")
	if err != nil {
		panic(err) // the pattern is valid
	}
	all := make([]Migration, len(names))
	for i, name := range names {
		sql := strings.TrimSpace(render(name, table, "", only...))
		all[i] = Migration{Version: i + 1, Name: path.Base(name), sql: sql}
	}
	return all
}

// render fills a template. Claim is the second text of ClaimSQL.
func render(file string, table outbox.Table, claim string, only ...outbox.Table) string {
	dead, published, last, relays := table.DeadLetter(), table.Published(), lastPartition(table), RelayTable(table)
	indexOf := func(of outbox.Table) func(string) string {
		return func(suffix string) string { return outbox.QuoteIdentifier(uniqueName(of.Name, suffix)) }
	}
	data := map[string]any{
		"with_outbox":      len(only) == 0 || slices.Contains(only, table),
		"with_dead_letter": len(only) == 0 || slices.Contains(only, dead),
		"with_relay":       len(only) == 0 || slices.Contains(only, relays),
		"outbox":           table.SQL(),
		"outbox_literal":   QuoteLiteral(table.SQL()),
		"index":            indexOf(table),
		"dead_letter":      dead.SQL(),
		"dead_index":       indexOf(dead),
		"published":        published.SQL(),
		"relay":            relays.SQL(),
		"relay_index":      indexOf(relays),
		"literal":          QuoteLiteral(published.SQL()),
		"published_index":  indexOf(published),
		"default":          last.SQL(),
		"default_literal":  QuoteLiteral(last.SQL()),
		"schema":           QuoteLiteral(table.Schema),
		"prefix":           QuoteLiteral(last.Name),
		"rotate":           table.RotatePublished().SQL(),
		"quote":            DollarQuote(table.SQL()),
		"claim":            claim,
	}
	for _, f := range Functions(table) {
		data[strings.TrimPrefix(f.Name.Name, table.Name+"_")] = f.Name.SQL()
	}
	var b strings.Builder
	err := template.Must(template.ParseFS(files, file)).Option("missingkey=error").Execute(&b, data)
	if err != nil {
		panic(err) // the templates are a part of the program
	}
	return b.String()
}

// functionsSQL returns a script for one transaction that creates functions, and what else the file has.
func functionsSQL(file string, table outbox.Table, functions ...Function) (string, error) {
	if err := checkName(table); err != nil {
		return "", err
	}
	before, after := ClaimSQL(table, functions...)
	return localPath + before + render(file, table, after), nil
}

// Package migrations creates the tables of an outbox and updates them. The numbered SQL files under sql/ are templates:
// every name in them derives from the name of the outbox table, so several outboxes can share a database.
package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	tern "github.com/jackc/tern/v2/migrate"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Latest is the version that this relay works with: the number of the newest file under sql/.
const Latest = 1

//go:embed sql/*.sql
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
}

// ErrNewer says that a newer relay created the tables.
var ErrNewer = errors.New("the tables are newer than this cdc-relay")

// Up runs the pending migrations. It returns the version before and after. If nothing is pending, it changes nothing
// and only needs to read the version. Concurrent calls wait for one another.
func Up(ctx context.Context, conn *pgx.Conn, table outbox.Table) (from, to int, err error) {
	if err := checkName(table); err != nil {
		return 0, 0, err
	}
	if err := lock(ctx, conn); err != nil {
		return 0, 0, fmt.Errorf("lock migrations: %w", err)
	}
	defer func() { err = errors.Join(err, unlock(ctx, conn)) }()

	state, err := Status(ctx, conn, table)
	if err != nil {
		return 0, 0, err
	}
	if len(state.Pending) == 0 {
		return state.Current, state.Current, nil
	}
	if err := createSchema(ctx, conn, table.Schema); err != nil {
		return state.Current, state.Current, err
	}
	if err := createVersionTable(ctx, conn, VersionTable(table)); err != nil {
		return state.Current, state.Current, fmt.Errorf("create version table %s: %w", VersionTable(table), err)
	}
	steps, err := rendered(table)
	if err != nil {
		return state.Current, state.Current, err
	}
	for _, step := range steps[state.Current:] {
		if err := migrate(ctx, conn, table, step.UpSQL, int(step.Sequence)); err != nil {
			return state.Current, state.Current, fmt.Errorf("migrate %s: %w", table, err)
		}
	}
	return state.Current, Latest, nil
}

func createVersionTable(ctx context.Context, conn *pgx.Conn, versions outbox.Table) error {
	_, err := conn.Exec(ctx, fmt.Sprintf("CREATE TABLE IF NOT EXISTS %[1]s (version int4 NOT NULL); "+
		"INSERT INTO %[1]s SELECT 0 WHERE NOT EXISTS (SELECT FROM %[1]s)",
		versions.SQL()))
	return err
}

// migrate runs one step and records its version. The migrator of tern would reset the settings of the session before it
// records the version, and the search_path with them.
func migrate(ctx context.Context, conn *pgx.Conn, table outbox.Table, sql string, version int) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, localPath+sql); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE "+VersionTable(table).SQL()+" SET version = $1", version)
		return err
	})
}

// Status returns the version of the tables. It needs only SELECT on the version table.
func Status(ctx context.Context, conn *pgx.Conn, table outbox.Table) (State, error) {
	if err := checkName(table); err != nil {
		return State{}, err
	}
	steps, err := rendered(table)
	if err != nil {
		return State{}, err
	}
	state := State{Latest: Latest}
	state.Current, err = readVersion(ctx, conn, VersionTable(table))
	if err != nil {
		return State{}, err
	}
	if state.Current > Latest {
		what := fmt.Sprintf("table %s has version %d, and the newest known one is %d", table, state.Current, Latest)
		return state, &problem.Problem{
			What: what,
			Fix:  "# install the newer cdc-relay that updated the tables",
			Err:  ErrNewer,
		}
	}
	for _, step := range steps[state.Current:] {
		state.Pending = append(state.Pending, Migration{Version: int(step.Sequence), Name: step.Name})
	}
	return state, nil
}

func readVersion(ctx context.Context, conn *pgx.Conn, versions outbox.Table) (int, error) {
	var version int
	err := conn.QueryRow(ctx, "SELECT version FROM "+versions.SQL()).Scan(&version)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, nil
	case pgcode.Is(err, pgerrcode.UndefinedTable): // also if the schema is missing
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("read version from %s: %w", versions, err)
	}
	return version, nil
}

// createSchema first checks if the schema exists: CREATE SCHEMA IF NOT EXISTS needs the privilege to create a schema
// even if it exists.
func createSchema(ctx context.Context, conn *pgx.Conn, schema string) error {
	var exists bool
	const sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)"
	err := conn.QueryRow(ctx, sql, schema).Scan(&exists)
	if err != nil {
		return fmt.Errorf("look for schema %q: %w", schema, err)
	}
	if exists {
		return nil
	}
	if _, err := conn.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+outbox.QuoteIdentifier(schema)); err != nil {
		return fmt.Errorf("create schema %q: %w", schema, err)
	}
	return nil
}

// rendered returns the migrations for one table, without a connection.
func rendered(table outbox.Table, only ...outbox.Table) ([]*tern.Migration, error) {
	migrator, err := tern.NewMigrator(context.Background(), nil, VersionTable(table).SQL())
	if err != nil {
		return nil, fmt.Errorf("render migrations: %w", err)
	}
	if err := load(migrator, table, only...); err != nil {
		return nil, err
	}
	return migrator.Migrations, nil
}

func load(migrator *tern.Migrator, table outbox.Table, only ...outbox.Table) error {
	sql, err := fs.Sub(files, "sql")
	if err != nil {
		return fmt.Errorf("open migrations: %w", err)
	}
	migrator.Data = templateData(table, only...)
	if err := migrator.LoadMigrations(sql); err != nil {
		return fmt.Errorf("load migrations: %w", err)
	}
	return nil
}

// localPath is for one transaction: nobody else's function or operator runs in place of one of Postgres.
const localPath = "SET LOCAL search_path = pg_catalog, pg_temp;\n"

// lockKey serializes calls of Up and of the other functions that create objects.
const lockKey = int64(0x6364632d72656c61) // "cdc-rela"

// Lock makes a transaction wait for others that create or grant something, and those for its end.
func Lock(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "SELECT pg_catalog.pg_advisory_xact_lock($1)", lockKey)
	return err
}

func lock(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "SELECT pg_catalog.pg_advisory_lock($1)", lockKey)
	return err
}

func unlock(ctx context.Context, conn *pgx.Conn) error {
	if conn.IsClosed() {
		return nil // the lock ended with the session
	}
	_, err := conn.Exec(context.WithoutCancel(ctx), "SELECT pg_catalog.pg_advisory_unlock($1)", lockKey)
	if err != nil {
		return fmt.Errorf("unlock migrations: %w", err)
	}
	return nil
}

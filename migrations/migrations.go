// Package migrations creates the tables of an outbox and updates them. The numbered SQL files under sql/ are templates:
// every name in them derives from the name of the outbox table, so several outboxes can share a database.
package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/tern/v2/migrate"

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
// and only needs to read the version. Concurrent calls wait for one another. The session's settings are reset after a
// migration, and it can write then.
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
	migrator, err := migrate.NewMigrator(ctx, conn, VersionTable(table).SQL())
	if err != nil {
		return state.Current, state.Current, fmt.Errorf("create version table %s: %w", VersionTable(table), err)
	}
	if err := load(migrator, table); err != nil {
		return state.Current, state.Current, err
	}
	for _, next := range state.Pending {
		err := migrator.MigrateTo(ctx, int32(next.Version))
		if err == nil { // after each migration, tern resets all settings, and a role may be read-only by default
			_, err = conn.Exec(ctx, `SET default_transaction_read_only = off`)
		}
		if err != nil {
			return state.Current, state.Current, fmt.Errorf("migrate %s: %w", table, err)
		}
	}
	return state.Current, Latest, nil
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
		return state, &problem.Problem{What: what, Fix: "# install the newer cdc-relay that updated the tables", Err: ErrNewer}
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
	case pgcode.Is(err, pgcode.UndefinedTable): // also if the schema is missing
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
	err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)", schema).Scan(&exists)
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
func rendered(table outbox.Table, only ...outbox.Table) ([]*migrate.Migration, error) {
	migrator, err := migrate.NewMigrator(context.Background(), nil, VersionTable(table).SQL())
	if err != nil {
		return nil, fmt.Errorf("render migrations: %w", err)
	}
	if err := load(migrator, table, only...); err != nil {
		return nil, err
	}
	return migrator.Migrations, nil
}

func load(migrator *migrate.Migrator, table outbox.Table, only ...outbox.Table) error {
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

// lockKey serializes calls of Up: tern's own lock does not cover the creation of the schema.
const lockKey = int64(0x6364632d72656c61) // "cdc-rela"

func lock(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", lockKey)
	return err
}

func unlock(ctx context.Context, conn *pgx.Conn) error {
	if conn.IsClosed() {
		return nil // the lock ended with the session
	}
	if _, err := conn.Exec(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock($1)", lockKey); err != nil {
		return fmt.Errorf("unlock migrations: %w", err)
	}
	return nil
}

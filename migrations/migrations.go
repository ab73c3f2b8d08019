// Package migrations makes the tables of an outbox and brings them up to date.
// The numbered SQL files under sql/ are templates: every name in them derives
// from the name of the outbox table, so that several can live in one database.
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

// Latest is the version that this relay works with, and so the number of the
// newest file under sql/.
const Latest = 1

//go:embed sql/*.sql
var files embed.FS

// State tells how far the tables of an outbox are.
type State struct {
	// Current is the version of the tables, 0 where there are none.
	Current int
	// Latest is the version that this relay works with.
	Latest int
	// Pending names the migrations that are still to be run, in their order.
	Pending []Migration
}

// Migration is one step from a version to the next.
type Migration struct {
	Version int
	// Name is that of the file, e.g. 001_outbox.sql.
	Name string
}

// ErrNewer tells that the tables were made by a newer relay than this one.
var ErrNewer = errors.New("the tables are newer than this cdc-relay")

// Up runs the migrations that are pending and returns the version found and the
// version reached. Run again it changes nothing and needs no privilege but to
// read the version. Concurrent calls wait for one another.
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
	if err := migrator.Migrate(ctx); err != nil {
		return state.Current, state.Current, fmt.Errorf("migrate %s: %w", table, err)
	}
	return state.Current, Latest, nil
}

// Status tells which version the tables have. It needs SELECT on the version
// table and nothing else.
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
		what := fmt.Sprintf("%s has version %d, known are versions up to %d", table, state.Current, Latest)
		return state, &problem.Problem{What: what, Fix: "use a newer cdc-relay", Err: ErrNewer}
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

// createSchema looks first: CREATE SCHEMA IF NOT EXISTS asks for the privilege to
// create one even where there is nothing to do.
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

// lockKey keeps two calls of Up apart; tern's own lock does not cover the schema.
const lockKey = int64(0x6364632d72656c61) // "cdc-rela"

func lock(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", lockKey)
	return err
}

func unlock(ctx context.Context, conn *pgx.Conn) error {
	if conn.IsClosed() {
		return nil // and with the session the lock
	}
	if _, err := conn.Exec(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock($1)", lockKey); err != nil {
		return fmt.Errorf("unlock migrations: %w", err)
	}
	return nil
}

package pgdial

import (
	"context"

	"github.com/jackc/pgx/v5/pgconn"
)

// The search_path decides which function, operator or type a name means. Postgres prefers the function whose parameters
// have the types of the arguments, not that of pg_catalog. So a role that may create functions in a schema of the path
// could run code as the relay. Each session of the program therefore sets its path as one of the two functions below.

// CatalogOnly makes the sessions of config find only objects of pg_catalog by a name without a schema: for sessions
// that set something up or read the catalog.
func CatalogOnly(config *pgconn.Config) { first(config, CatalogOnlySQL) }

// CatalogOnlySQL sets this path. The path lists pg_temp, because otherwise pg_temp comes first.
const CatalogOnlySQL = "SET search_path = pg_catalog, pg_temp"

// CatalogFirst puts pg_catalog before the path of the role: for sessions that read and change the rows of an outbox.
// They run triggers, defaults and policies of the application, which may need the path of the role. SQL for these
// sessions writes functions with arguments as pg_catalog.name, because a better match in another schema would win. It
// uses operators with exactly the types that pg_catalog has them for: those win.
func CatalogFirst(config *pgconn.Config) { first(config, catalogFirst) }

// An empty path stays: Postgres searches pg_catalog first if the path does not list it.
const catalogFirst = `SELECT pg_catalog.set_config('search_path',
  pg_catalog.regexp_replace(pg_catalog.current_setting('search_path'), '^(?!pg_catalog *(,|$))(?=.)', 'pg_catalog, '),
  false)`

// first makes each connection of config run a statement before all others, unless that would change the sessions of
// other clients.
func first(config *pgconn.Config, sql string) {
	before(config, func(ctx context.Context, conn *pgconn.PgConn) error {
		if err := rejectShared(ctx, conn, config); err != nil {
			return err
		}
		return conn.Exec(ctx, sql).Close()
	})
}

// before makes each connection of config do this before what it does already.
func before(config *pgconn.Config, do func(context.Context, *pgconn.PgConn) error) {
	next := config.AfterConnect
	config.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if err := do(ctx, conn); err != nil || next == nil {
			return err
		}
		return next(ctx, conn)
	}
}

// AsUTF8 makes the connections of config use UTF-8. A database with the encoding SQL_ASCII converts nothing: there, one
// value that is not UTF-8 would end each statement and the stream, so values pass as they are.
func AsUTF8(config *pgconn.Config) {
	config.RuntimeParams["client_encoding"] = "UTF8"
	before(config, func(ctx context.Context, conn *pgconn.PgConn) error {
		if conn.ParameterStatus("server_encoding") != "SQL_ASCII" {
			return nil
		}
		return conn.Exec(ctx, "SET client_encoding = 'SQL_ASCII'").Close()
	})
}

// AsWriter makes the connections of config check target_session_attrs in a read-write transaction: a role that is
// read-only by default makes a primary look like a standby. The session's settings stay as they are.
func AsWriter(config *pgconn.Config) {
	validate := config.ValidateConnect
	if validate == nil {
		return
	}
	config.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if _, err := conn.Exec(ctx, "BEGIN READ WRITE").ReadAll(); err != nil {
			return validate(ctx, conn) // a standby rejects it
		}
		says := validate(ctx, conn) // with prefer-standby, a rejected primary is the fallback
		if _, err := conn.Exec(ctx, "ROLLBACK").ReadAll(); says == nil {
			return err
		}
		return says
	}
}

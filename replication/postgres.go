package replication

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/slot"
)

// query runs one statement and returns its rows as text. It uses the simple protocol, the only one on a replication
// connection.
func query(ctx context.Context, conn *pgconn.PgConn, sql string) ([][]string, error) {
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, err
	}
	var rows [][]string
	for _, result := range results {
		for _, values := range result.Rows {
			row := make([]string, len(values))
			for i, v := range values {
				row[i] = string(v)
			}
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// option quotes a string for START_REPLICATION: the only escape in its grammar (repl_scanner.l) is the doubled quote.
func option(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// word quotes a name for START_REPLICATION, which knows no U&"…".
func word(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// serverVersion returns the major version, or 0 if it is unknown.
func serverVersion(conn *pgconn.PgConn) int { return pgdial.Major(pgdial.Version(conn)) }

// checkFailover rejects a failover slot on a server that has none.
func checkFailover(conn *pgconn.PgConn, names Names) error {
	if !names.Failover || serverVersion(conn) >= 17 {
		return nil
	}
	return problem.New("# upgrade Postgres, or leave out --failover-slot",
		"Postgres %s has no failover slots: --failover-slot needs 17 or later", pgdial.Version(conn))
}

// standbyError is no problem for a person at once: the standby may be promoted.
type standbyError struct{}

func (standbyError) Error() string { return "this server is a standby: it accepts no writes" }

// Hint says which server to name.
func (standbyError) Hint() string {
	return "# name the primary in --database-url (CDC_RELAY_DATABASE_URL), or all servers: " +
		"postgres://user@first,second/database?target_session_attrs=read-write"
}

// checkServer reports settings of the server that prevent logical replication.
func checkServer(ctx context.Context, conn *pgconn.PgConn) error {
	if err := pgdial.CheckVersion(pgdial.Version(conn)); err != nil {
		return err
	}
	rows, err := query(ctx, conn, "SELECT pg_catalog.current_setting('wal_level'), pg_is_in_recovery()")
	if err != nil {
		return fmt.Errorf("read the server's settings: %w", err)
	}
	if rows[0][1] == "t" {
		return standbyError{}
	}
	if level := rows[0][0]; !slot.CanDecode(serverVersion(conn), level) {
		return problem.New("ALTER SYSTEM SET wal_level = 'logical';  -- then restart Postgres "+
			"(RDS: rds.logical_replication = 1; Cloud SQL: cloudsql.logical_decoding = on); or run with --mode poll",
			"Postgres has wal_level = %s: streaming needs logical", level)
	}
	return nil
}

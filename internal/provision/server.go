package provision

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/slot"
)

// serverVersion returns the major version, or 0 if it is unknown ("17beta1" is 17).
func serverVersion(conn *pgconn.PgConn) int {
	version := conn.ParameterStatus("server_version")
	digits := strings.IndexFunc(version+".", func(r rune) bool { return r < '0' || r > '9' })
	major, _ := strconv.Atoi(version[:digits])
	return major
}

// checkFailover rejects a failover slot on a server that has none.
func checkFailover(_ context.Context, conn *pgconn.PgConn, names Names) error {
	if !names.Failover || serverVersion(conn) >= 17 {
		return nil
	}
	return problem.New("# upgrade Postgres, or leave out --failover-slot",
		"Postgres %s has no failover slots: they need 17 or later", conn.ParameterStatus("server_version"))
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
func checkServer(ctx context.Context, conn *pgconn.PgConn, _ Names) error {
	version := serverVersion(conn)
	if version < 15 {
		return problem.New("# upgrade Postgres, or run with --mode poll",
			"Postgres %s is too old: streaming needs 15 or later", conn.ParameterStatus("server_version"))
	}
	rows, err := slot.Query(ctx, conn, "SELECT pg_catalog.current_setting('wal_level'), pg_is_in_recovery()")
	if err != nil {
		return fmt.Errorf("read the server's settings: %w", err)
	}
	if rows[0][1] == "t" {
		return standbyError{}
	}
	if level := rows[0][0]; !slot.CanDecode(version, level) {
		return problem.New("ALTER SYSTEM SET wal_level = 'logical';  -- then restart Postgres "+
			"(RDS: rds.logical_replication = 1; Cloud SQL: cloudsql.logical_decoding = on); or run with --mode poll",
			"Postgres has wal_level = %s: streaming needs logical", level)
	}
	return nil
}

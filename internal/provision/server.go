package provision

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/slot"
)

func major(conn *pgconn.PgConn) int { return pgdial.Major(pgdial.Version(conn)) }

// checkFailover rejects a failover slot on a server that has none.
func checkFailover(_ context.Context, conn *pgconn.PgConn, names Names) error {
	if !names.Failover || major(conn) >= 17 {
		return nil
	}
	return problem.New("# upgrade Postgres, or leave out --failover-slot",
		"Postgres %s has no failover slots: they need 17 or later", pgdial.Version(conn))
}

// checkServer reports settings of the server that prevent logical replication.
func checkServer(ctx context.Context, conn *pgconn.PgConn, _ Names) error {
	if err := pgdial.CheckVersion(pgdial.Version(conn)); err != nil {
		return err
	}
	rows, err := slot.Query(ctx, conn, "SELECT pg_catalog.current_setting('wal_level'), pg_is_in_recovery()")
	if err != nil {
		return fmt.Errorf("read the server's settings: %w", err)
	}
	if rows[0][1] == "t" {
		return problem.Standby{}
	}
	if level := rows[0][0]; !slot.CanDecode(major(conn), level) {
		return problem.New("ALTER SYSTEM SET wal_level = 'logical';  -- then restart Postgres "+
			"(RDS: rds.logical_replication = 1; Cloud SQL: cloudsql.logical_decoding = on); or run with --mode poll",
			"Postgres has wal_level = %s: streaming needs logical", level)
	}
	return nil
}

package pgdial

import (
	"context"

	"github.com/jackc/pgx/v5/pgconn"
)

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

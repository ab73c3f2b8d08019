package pgdial

import (
	"context"

	"github.com/jackc/pgx/v5/pgconn"
)

// AsWriter has the connections of config ask for target_session_attrs within a transaction that may write, since a role
// that is read-only by default makes a primary look like a standby. Nothing of it stays.
func AsWriter(config *pgconn.Config) {
	validate := config.ValidateConnect
	if validate == nil {
		return
	}
	config.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if _, err := conn.Exec(ctx, "BEGIN READ WRITE").ReadAll(); err != nil {
			return validate(ctx, conn) // a standby rejects it
		}
		says := validate(ctx, conn) // with prefer-standby, a primary that it rejects is taken if there is nothing else
		if _, err := conn.Exec(ctx, "ROLLBACK").ReadAll(); says == nil {
			return err
		}
		return says
	}
}

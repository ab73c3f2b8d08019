package pgdial

import (
	"context"

	"github.com/jackc/pgx/v5/pgconn"
)

// AsUTF8 makes the connections of config use UTF-8. A database with the encoding SQL_ASCII converts nothing: there, one
// value that is not UTF-8 would end each statement and the stream, so values pass as they are.
func AsUTF8(config *pgconn.Config) {
	config.RuntimeParams["client_encoding"] = "UTF8"
	next := config.AfterConnect
	config.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if conn.ParameterStatus("server_encoding") == "SQL_ASCII" {
			if err := conn.Exec(ctx, "SET client_encoding = 'SQL_ASCII'").Close(); err != nil {
				return err
			}
		}
		if next == nil {
			return nil
		}
		return next(ctx, conn)
	}
}

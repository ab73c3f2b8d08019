package fault

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// connectTimeout limits one attempt to reach a server.
const connectTimeout = 10 * time.Second

// Connect opens a connection to the run's database, bypassing the proxies. The caller closes it.
func (w *World) Connect(ctx context.Context) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(w.Database)
	if err != nil {
		return nil, err
	}
	config.ConnectTimeout = connectTimeout
	config.RuntimeParams["application_name"] = "cdc-relay-soak fault" // must not look like a relay's
	return pgx.ConnectConfig(ctx, config)
}

// Exec runs statements in the run's database, each in its own transaction.
func (w *World) Exec(ctx context.Context, statements ...string) error {
	conn, err := w.Connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// Query reads one row of one column on a new connection.
func (w *World) Query(ctx context.Context, into any, sql string, args ...any) error {
	conn, err := w.Connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	return conn.QueryRow(ctx, sql, args...).Scan(into)
}

func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

package pgdial

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// probeTimeout bounds the second connection through a pooler. A pool of sessions may have none to spare.
const probeTimeout = 2 * time.Second

// rejectShared returns a *problem.Problem if a pooler gives the connection's server process to others between two
// transactions: the session's settings would stay in their sessions. A pooler shows by the process of the startup,
// which is not that of the server.
func rejectShared(ctx context.Context, conn *pgconn.PgConn, config *pgconn.Config) error {
	own, err := backend(ctx, conn)
	if err != nil || own == fmt.Sprint(conn.PID()) || config.RuntimeParams["replication"] != "" {
		return err
	}
	second := config.Copy()
	second.AfterConnect, second.ValidateConnect = nil, nil
	probeCtx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	probe, err := pgconn.ConnectConfig(probeCtx, second)
	if err != nil {
		return nil // other connections meet this error, too
	}
	defer probe.Close(context.WithoutCancel(ctx))
	for range 3 { // other clients may use the process meanwhile
		if _, err := probe.Exec(probeCtx, "BEGIN").ReadAll(); pgconn.Timeout(err) {
			return nil // each client keeps its process
		}
		held, err := backend(probeCtx, probe)
		if pgconn.Timeout(err) {
			return nil
		}
		if err != nil || held == own {
			return sharedProblem(err)
		}
		if now, err := backend(ctx, conn); err != nil || now != own {
			return sharedProblem(err)
		}
		if _, err := probe.Exec(probeCtx, "COMMIT").ReadAll(); err != nil {
			return sharedProblem(err)
		}
	}
	return nil
}

func sharedProblem(err error) error {
	return problem.Of(err, "# use host and port of Postgres itself in "+InURL+
		", or set pool_mode = session in the pooler",
		"the connection goes through a pooler that shares server processes between transactions: "+
			"settings of this session would stay in sessions of other clients")
}

// backend returns the id of the server process.
func backend(ctx context.Context, conn *pgconn.PgConn) (string, error) {
	results, err := conn.Exec(ctx, "SELECT pg_backend_pid()").ReadAll()
	if err != nil {
		return "", err
	}
	return string(results[0].Rows[0][0]), nil
}

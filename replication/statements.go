package replication

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/slot"
)

// walSenderTimeout returns the server's setting; zero: off.
func walSenderTimeout(ctx context.Context, conn *pgconn.PgConn) (time.Duration, error) {
	rows, err := slot.Query(ctx, conn, "SELECT (1000 * extract(epoch FROM "+
		"pg_catalog.current_setting('wal_sender_timeout')::pg_catalog.interval))::pg_catalog.int8")
	if err != nil {
		return 0, fmt.Errorf("read wal_sender_timeout: %w", err)
	}
	millis, err := strconv.Atoi(rows[0][0])
	return time.Duration(millis) * time.Millisecond, err
}

// option quotes a string for START_REPLICATION: the only escape in its grammar (repl_scanner.l) is the doubled quote.
func option(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// word quotes a name for START_REPLICATION, which knows no U&"…".
func word(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

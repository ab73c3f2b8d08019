package operator

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// RelayHost is an address from which relays are connected to this database.
type RelayHost struct {
	Address     string // "local": a Unix socket; "": the role may not see it
	Connections int64
	// Works: a session has done something lately, or the role may not see that.
	Works bool
}

// RelayHosts returns all addresses whose sessions the role may see. A relay whose sessions have been idle for longer
// does not work. A walsender does not count: it can outlive a process that hangs.
func (t *Tables) RelayHosts(ctx context.Context, idle time.Duration) (hosts []RelayHost, err error) {
	err = t.glance(ctx, func(ctx context.Context, tx querier) error {
		rows, err := tx.Query(ctx, `
SELECT coalesce(pg_catalog.host(a.client_addr), 'local'), count(*),
       coalesce(pg_catalog.bool_or(a.backend_type IS NULL OR a.backend_type <> 'walsender'
         AND coalesce(a.state_change, clock_timestamp()) > clock_timestamp() - $1::interval), false)
FROM pg_catalog.pg_stat_activity a
WHERE a.application_name = 'cdc-relay worker' AND a.datname = current_database() GROUP BY 1 ORDER BY 1`, idle)
		if err != nil {
			return err
		}
		hosts, err = pgx.CollectRows(rows, pgx.RowToStructByPos[RelayHost])
		return err
	})
	return hosts, err
}

package operator

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// RelayHost is an address from which relays are connected to this database.
type RelayHost struct {
	Address     string // "local": a Unix socket; "": the role may not see it
	Connections int64
}

// RelayHosts returns all addresses whose sessions the role may see.
func (t *Tables) RelayHosts(ctx context.Context) (hosts []RelayHost, err error) {
	err = t.glance(ctx, func(ctx context.Context, tx querier) error {
		rows, err := tx.Query(ctx, `
SELECT coalesce(pg_catalog.host(a.client_addr), 'local'), count(*) FROM pg_catalog.pg_stat_activity a
WHERE a.application_name = 'cdc-relay' AND a.datname = current_database() GROUP BY 1 ORDER BY 1`)
		if err != nil {
			return err
		}
		hosts, err = pgx.CollectRows(rows, pgx.RowToStructByPos[RelayHost])
		return err
	})
	return hosts, err
}

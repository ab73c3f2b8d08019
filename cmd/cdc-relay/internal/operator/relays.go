package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/migrations"
)

// Relay is what a relay has told in its row of the table of relays.
type Relay struct {
	Host        string
	PID         int
	Version     string
	Since, Seen time.Time
	// Unseen is for how long the relay has not written the row.
	Unseen time.Duration
	// Settings and State are JSON.
	Settings, State []byte
}

// SeenLately is how long ago a relay that works has written its row, at most.
const SeenLately = 15 * time.Second

// mostRelays bounds how many relays a view shows.
const mostRelays = 100

// Relays returns the relays of the outbox, those that were seen last first.
func (t *Tables) Relays(ctx context.Context) (relays []Relay, err error) {
	table := migrations.RelayTable(t.table)
	err = t.glance(ctx, func(ctx context.Context, tx querier) error {
		rows, err := tx.Query(ctx, `
SELECT r.host, r.pid, r.version, r.since, r.seen, clock_timestamp() - r.seen, r.settings::text, r.state::text
FROM `+table.SQL()+` r
ORDER BY r.seen DESC, r.id LIMIT $1`, mostRelays)
		if err != nil {
			return err
		}
		relays, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Relay])
		return err
	})
	if pgcode.Is(err, pgerrcode.UndefinedTable, pgerrcode.InvalidSchemaName) {
		return nil, nil // no relay can tell anything
	}
	if err != nil {
		err = t.may(ctx, fmt.Errorf("read %s: %w", table, err), need{"SELECT", table.SQL()})
	}
	return relays, err
}

package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
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

// Relays returns what ReadRelays does.
func (t *Tables) Relays(ctx context.Context) (relays []Relay, mute []string, err error) {
	err = t.glance(ctx, func(ctx context.Context, tx querier) (err error) {
		relays, mute, err = ReadRelays(ctx, tx, t.table)
		return err
	})
	if err != nil {
		err = t.may(ctx, err, need{"SELECT", migrations.RelayTable(t.table).SQL()})
	}
	return relays, mute, err
}

// muteSQL returns the roles of running relays that may not write to the table of relays ($2). A role that may delete
// from the outbox ($1) is one of its relays. Every role sees the names of the sessions of others.
const muteSQL = `
SELECT coalesce(pg_catalog.array_agg(DISTINCT a.usename::text), '{}') FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.application_name ~ '^cdc-relay (leader|standby|ready for |stream )'
  AND pg_catalog.has_table_privilege(a.usesysid, pg_catalog.to_regclass($1), 'DELETE')
  AND NOT (pg_catalog.has_table_privilege(a.usesysid, pg_catalog.to_regclass($2), 'INSERT')
    AND pg_catalog.has_table_privilege(a.usesysid, pg_catalog.to_regclass($2), 'UPDATE'))`

// ReadRelays returns the relays of the outbox, those that were seen last first. Mute are roles whose relays run and may
// not tell it.
func ReadRelays(ctx context.Context, tx querier, of outbox.Table) (relays []Relay, mute []string, err error) {
	table := migrations.RelayTable(of)
	if err = tx.QueryRow(ctx, muteSQL, of.SQL(), table.SQL()).Scan(&mute); err == nil {
		var rows pgx.Rows
		rows, err = tx.Query(ctx, `
SELECT r.host, r.pid, r.version, r.since, r.seen, clock_timestamp() - r.seen, r.settings::text, r.state::text
FROM `+table.SQL()+` r
ORDER BY r.seen DESC, r.id LIMIT $1`, mostRelays)
		if err == nil {
			relays, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Relay])
		}
	}
	if pgcode.Is(err, pgerrcode.UndefinedTable, pgerrcode.InvalidSchemaName) {
		return nil, nil, nil // no relay can tell anything
	}
	if err != nil {
		err = fmt.Errorf("read %s: %w", table, err)
	}
	return relays, mute, err
}

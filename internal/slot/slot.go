// Package slot is the only one that reads replication slots and their owners.
package slot

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Plugin is the output plugin of a relay's slot.
const Plugin = "pgoutput"

// CanDecode reports whether a server of this major version creates logical slots with this wal_level. From 19 on, the
// first logical slot raises the level of a server with replica, without a restart (see effective_wal_level in the
// manual of Postgres 19).
func CanDecode(major int, walLevel string) bool {
	return walLevel == "logical" || walLevel == "replica" && major >= 19
}

// Slot is a row of pg_replication_slots. The zero Slot does not exist.
type Slot struct {
	Name   string `json:"slot_name"`
	Type   string `json:"slot_type"` // logical or physical
	Plugin string `json:"plugin"`
	// Here: the slot belongs to the current database. Slot names are unique in the whole server.
	Here bool `json:"here"`
	// Database is that of a logical slot; "" for a physical one.
	Database  string `json:"database"`
	Temporary bool   `json:"temporary"`
	// Synced: it is a standby's copy of a failover slot.
	Synced bool `json:"synced"`
	Options
	// WALStatus is reserved, extended, unreserved or lost. Invalidated is the reason of an invalidation (Postgres 17
	// and later).
	WALStatus   string `json:"wal_status"`
	Invalidated string `json:"invalidation_reason"`
	// SafeBytes is how much more WAL may be written before the slot is lost; nil: no limit.
	SafeBytes *int64 `json:"safe_wal_size"`
	// Confirmed is the confirmed position, 0 while the slot is being created; Restart is where the server reads WAL
	// from.
	Confirmed uint64 `json:"confirmed"`
	Restart   uint64 `json:"restart"`
	// LagBytes is the unconfirmed WAL, negative if the slot is ahead of the server; RetainedBytes is the WAL kept for
	// the slot.
	LagBytes, RetainedBytes int64 `json:"-"`
	// WALEnd is the end of the server's flushed WAL.
	WALEnd uint64 `json:"wal_end"`
	// LagSeconds is how long the last confirmed WAL took to be confirmed, InactiveSeconds how long the slot has been
	// unused (Postgres 17 and later); nil: unknown.
	LagSeconds      *float64 `json:"lag_seconds"`
	InactiveSeconds *float64 `json:"inactive_seconds"`
	Xmin            string   `json:"xmin"`
	XminAge         int64    `json:"xmin_age"` // in transactions
	// Process streams from the slot, or creates it.
	Process Process `json:"process"`
}

// Options are those with which a slot was created.
type Options struct {
	TwoPhase bool `json:"two_phase"`
	Failover bool `json:"failover"` // copied to standbys (Postgres 17 and later)
}

// Process is a process of the server; the zero Process is none.
type Process struct {
	PID uint32 `json:"pid"`
	// Application is its application_name; nil: it has ended.
	Application *string `json:"application"`
	// Client is address and port; nil: a Unix socket, or hidden from the role. Then the fields below may be hidden too.
	Client *string `json:"client"`
	// Since is its start, which tells it from an earlier process with the same PID.
	Since time.Time `json:"since"`
}

// Columns that some versions lack are read from the row as JSON. An idle walsender reports no lag. A client can have
// confirmed a position of 2^63 or more.
const listSQL = `
SELECT pg_catalog.to_jsonb(s) || pg_catalog.jsonb_build_object(
  'here', coalesce(s.database = current_database(), false),
  'confirmed', s.confirmed_flush_lsn - '0/0', 'restart', s.restart_lsn - '0/0',
  'wal_end', now.lsn - '0/0',
  'lag_seconds', CASE WHEN now.lsn <= s.confirmed_flush_lsn THEN 0
                      WHEN a.pid IS NOT NULL THEN coalesce(extract(epoch FROM r.flush_lag), 0) END,
  'inactive_seconds', extract(epoch FROM
    clock_timestamp() - (pg_catalog.to_jsonb(s) ->> 'inactive_since'::text)::timestamptz),
  'xmin', s.xmin::text, 'xmin_age', pg_catalog.age(s.xmin),
  'process', CASE WHEN s.active_pid IS NOT NULL THEN pg_catalog.jsonb_build_object(
    'pid', s.active_pid, 'application', a.application_name, 'since', a.backend_start,
    'client', pg_catalog.host(a.client_addr) || coalesce(':' || nullif(a.client_port, -1)::text, '')) END)
FROM pg_catalog.pg_replication_slots s
LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid
LEFT JOIN pg_catalog.pg_stat_replication r ON r.pid = s.active_pid
CROSS JOIN (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                        ELSE pg_current_wal_flush_lsn() END AS lsn) now`

// List returns all slots of the server, of all databases, by name.
func List(ctx context.Context, conn *pgconn.PgConn) ([]Slot, error) {
	return read(ctx, conn, listSQL+" ORDER BY s.slot_name")
}

// Others returns the slots of others: that which retains most WAL is the first. A lost slot retains none.
func Others(all []Slot, except func(name string) bool) []Slot {
	others := slices.DeleteFunc(slices.Clone(all), func(s Slot) bool { return except(s.Name) || s.Lost() })
	slices.SortStableFunc(others, func(a, b Slot) int { return cmp.Compare(b.RetainedBytes, a.RetainedBytes) })
	return others
}

// Abandoned reports whether nobody uses the slot, and it retains much WAL: a standby that restarts retains less.
func (s Slot) Abandoned() bool { return !s.Active() && s.RetainedBytes >= 100<<20 }

// Read returns the slot with this name, in any database.
func Read(ctx context.Context, conn *pgconn.PgConn, name string) (Slot, error) {
	slots, err := read(ctx, conn, listSQL+" WHERE s.slot_name = "+outbox.QuoteLiteral(name))
	if err != nil || len(slots) == 0 {
		return Slot{}, err
	}
	return slots[0], nil
}

func read(ctx context.Context, conn *pgconn.PgConn, sql string) ([]Slot, error) {
	rows, err := Query(ctx, conn, sql)
	if err != nil {
		return nil, fmt.Errorf("read the replication slots: %w", err)
	}
	slots := make([]Slot, len(rows))
	for i, row := range rows {
		if err := json.Unmarshal([]byte(row[0]), &slots[i]); err != nil {
			return nil, fmt.Errorf("read the replication slots: %w", err)
		}
		slots[i].measure()
	}
	return slots, nil
}

// measure sets the numbers of bytes. An active slot may confirm during the query, so its lag is never negative.
func (s *Slot) measure() {
	if s.Confirmed != 0 && s.WALEnd != 0 {
		s.LagBytes = between(s.Confirmed, s.WALEnd)
	}
	if s.Active() {
		s.LagBytes = max(s.LagBytes, 0)
	}
	if s.Restart != 0 {
		s.RetainedBytes = max(between(s.Restart, s.WALEnd), 0)
	}
}

// between returns the bytes from one position to another, negative if that is before it.
func between(from, to uint64) int64 {
	if from > to {
		return -between(to, from)
	}
	return int64(min(to-from, math.MaxInt64))
}

// Exists reports whether a slot has this name, in any database.
func (s Slot) Exists() bool { return s.Name != "" }

// Active reports whether a process uses the slot.
func (s Slot) Active() bool { return s.Process.PID != 0 }

// Creating reports whether a process is creating the slot. That waits for all open transactions, and nobody streams
// meanwhile.
func (s Slot) Creating() bool { return s.Active() && s.Type == "logical" && s.Confirmed == 0 }

// Lost reports whether the server has invalidated the slot.
func (s Slot) Lost() bool { return s.WALStatus == "lost" || s.Invalidated != "" }

// Owner returns the process that streams from the slot, if the slot belongs to the current database.
func (s Slot) Owner() Process {
	if !s.Here || s.Creating() {
		return Process{}
	}
	return s.Process
}

// Relayed reports whether a relay of the table owns the slot.
func (s Slot) Relayed(table outbox.Table) bool { return s.Owner().PID != 0 && s.Taken(table) == nil }

// Unusable returns why no relay of the current database can use the slot, or nil. A slot without a plugin is being
// created: the server sets the plugin after the name.
func (s Slot) Unusable() *problem.Problem {
	fix := DropSQL(s.Name) + ";  -- or choose another name with --slot"
	switch {
	case !s.Exists():
	case s.Type == "physical":
		return problem.New(fix, "slot %s exists and is not a pgoutput slot, but a physical one", s.Name)
	case s.Plugin != Plugin && (s.Type != "logical" || s.Plugin != ""):
		return problem.New(fix, "slot %s exists and is not a pgoutput slot (plugin %q)", s.Name, s.Plugin)
	case !s.Here:
		fix := "# choose another name with --slot: slot names are unique in the whole server"
		if !s.Active() { // its database may have been renamed
			fix += "; or, if nobody needs the slot there: " + DropSQL(s.Name) + ";"
		}
		return problem.New(fix, "slot %s belongs to another database, %s", s.Name, outbox.Identifier(s.Database))
	}
	return nil
}

// Taken returns a problem if the slot's owner is no relay of the table, or nil.
func (s Slot) Taken(table outbox.Table) *problem.Problem {
	owner := s.Owner()
	if owner.Application == nil || owner.Relays(table) {
		return nil
	}
	fix := fmt.Sprintf("SELECT pg_catalog.pg_terminate_backend(%d);  -- as an administrator; "+
		"or give this relay a slot of its own: setup and run with --slot NAME", owner.PID)
	if strings.HasPrefix(*owner.Application, applicationPrefix) {
		fix = "cdc-relay setup --slot NAME --publication NAME  # with the same --table; " +
			"run with the same names: each outbox table needs its own"
	}
	return problem.New(fix, "slot %s is owned by %s, which is no relay of table %s", s.Name, owner, table)
}

// CreateSQL returns the SQL that creates a relay's slot.
func CreateSQL(name string, options Options) string {
	sql := fmt.Sprintf("SELECT pg_catalog.pg_create_logical_replication_slot(%s, '%s'",
		outbox.QuoteLiteral(name), Plugin)
	if options.TwoPhase {
		sql += ", twophase => true"
	}
	if options.Failover {
		sql += ", failover => true"
	}
	return sql + ")"
}

// DropSQL returns the SQL that drops an unused slot.
func DropSQL(name string) string {
	return "SELECT pg_catalog.pg_drop_replication_slot(" + outbox.QuoteLiteral(name) + ")"
}

// Package provision creates, checks, repairs and drops the publication and the slot of a stream.
package provision

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Names are the database objects for streaming. NamesOf returns those of a shard.
type Names struct {
	Table       outbox.Table
	Publication string
	Slot        string
	// Shard is the part of the rows that the publication brings.
	Shard outbox.Shard
	// Failover: the slot must be a failover slot. Found are the options of the slot that was last seen: a repair
	// restores them.
	Failover bool
	Found    slot.Options
	// NoWAL: the WAL that the slot needs is gone.
	NoWAL bool
}

// Change is one change by Setup.
type Change struct {
	Event event.Name
	Text  string // one line, such as "created slot cdc_relay"
}

// Setup creates the publication and the slot if they are missing, and recreates a slot that can never deliver again. It
// returns its changes, and may be called at any time. Creating the slot waits for open transactions, at most for wait.
func Setup(ctx context.Context, conn *pgconn.PgConn, names Names, wait time.Duration) ([]Change, error) {
	// checkNames: renewing the slot could drop that of another outbox.
	if err := checkAll(ctx, conn, names, checkServer, checkFailover, CheckSplit, checkNames); err != nil {
		return nil, err
	}
	var done []Change
	for _, step := range []func() (Change, error){
		// First: it rejects a slot that is not a relay's.
		func() (Change, error) {
			text, err := renewSlot(ctx, conn, &names)
			return Change{Event: event.SlotDropped, Text: text}, err
		},
		func() (Change, error) {
			text, err := ensurePublication(ctx, conn, names)
			return Change{Event: event.PublicationRecreated, Text: text}, err
		},
		func() (Change, error) {
			text, err := ensureSlot(ctx, conn, names, wait)
			return Change{Event: event.SlotCreated, Text: text}, err
		},
	} {
		change, err := step()
		if change.Text != "" {
			done = append(done, change)
		}
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// ErrMayNot says that the role of the session lacks a privilege for Setup.
var ErrMayNot = errors.New("permission denied")

// CheckBefore returns a *problem.Problem if Setup would fail, so that nothing is created in vain: the names belong to
// another outbox, the server cannot decode, or the role may not create what is missing (ErrMayNot).
func CheckBefore(ctx context.Context, conn *pgconn.PgConn, names Names) error {
	return checkAll(ctx, conn, names, checkServer, checkFailover, CheckSplit, CheckNames, mayCreate)
}

type check func(context.Context, *pgconn.PgConn, Names) error

func checkAll(ctx context.Context, conn *pgconn.PgConn, names Names, checks ...check) error {
	for _, check := range checks {
		if err := check(ctx, conn, names); err != nil {
			return err
		}
	}
	return nil
}

// mayCreate checks the privileges for what is missing. That of the table's owner is not among them.
func mayCreate(ctx context.Context, conn *pgconn.PgConn, names Names) error {
	rows, err := slot.Query(ctx, conn, fmt.Sprintf(`
SELECT pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')
         OR EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = %s),
       `+slot.MayReplicateSQL+` OR EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = %s),
       current_user, pg_catalog.current_database()
FROM pg_catalog.pg_roles r WHERE r.rolname = current_user`,
		outbox.QuoteLiteral(names.Publication), outbox.QuoteLiteral(names.Slot)))
	if err != nil || len(rows) == 0 {
		return err
	}
	role, database := rows[0][2], rows[0][3]
	switch {
	case rows[0][0] != "t":
		role, database = outbox.Identifier(role), outbox.Identifier(database)
		fix := "# run setup as the owner of database " + database + ", or as a superuser"
		return problem.Of(ErrMayNot, fix, "role %s may not create publication %s in database %s",
			role, outbox.Identifier(names.Publication), database)
	case rows[0][1] != "t":
		return slot.RoleProblem(role, ErrMayNot)
	}
	return nil
}

// SetupSQL returns the SQL of Setup, for a DBA to run in psql.
func SetupSQL(names Names) string {
	return fmt.Sprintf(`-- The publication publishes only inserts, those of partitions under the name of the table.
%s;

-- The slot. Create it outside a transaction. The server waits for all open
-- transactions that have written something. While no relay runs, the slot retains
-- WAL: set max_slot_wal_keep_size. A relay that loses its slot recreates it, and
-- scans the table for missed rows.
%s;
`, createPublicationSQL(names), slot.CreateSQL(names.Slot, names.slotOptions()))
}

// afterStop is how long Teardown waits for a slot: the server process of a relay that was just stopped ends a little
// later.
const afterStop = 5 * time.Second

// Teardown drops existing slots and publications, and returns a line for each. It fails if a slot stays in use, because
// its relay would create it again.
func Teardown(ctx context.Context, conn *pgconn.PgConn, all ...Names) (done []string, err error) {
	var slots []slot.Slot
	began := time.Now()
	for _, names := range all {
		if err := CheckNames(ctx, conn, names); err != nil {
			return nil, err
		}
	}
	for _, names := range all {
		s, err := readOwnSlot(ctx, conn, names.Slot)
		for err == nil && s.Active() && time.Since(began) < afterStop && ctx.Err() == nil {
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
			s, err = readOwnSlot(ctx, conn, names.Slot)
		}
		if err != nil {
			return nil, err
		}
		if s.Active() {
			return nil, problem.New("# stop the relays that use it first",
				"slot %s is in use by %s", names.Slot, s.Process)
		}
		slots = append(slots, s)
	}
	for i, names := range all {
		if slots[i].Exists() {
			if err := dropSlot(ctx, conn, names.Slot); err != nil {
				return done, err
			}
			done = append(done, "dropped slot "+names.Slot)
		}
		if done, err = dropPublication(ctx, conn, names, done); err != nil {
			return done, err
		}
	}
	return done, nil
}

func dropPublication(ctx context.Context, conn *pgconn.PgConn, names Names, done []string) ([]string, error) {
	rows, err := slot.Query(ctx, conn,
		"SELECT 1 FROM pg_catalog.pg_publication WHERE pubname = "+outbox.QuoteLiteral(names.Publication))
	if err != nil || len(rows) == 0 {
		return done, err
	}
	others, err := otherOutboxes(ctx, conn, names.Publication, names.Table)
	if err != nil {
		return done, err
	}
	name := outbox.Identifier(names.Publication)
	drop, what := "DROP PUBLICATION IF EXISTS "+name, "dropped publication "+name
	if len(others) > 0 {
		drop = fmt.Sprintf("ALTER PUBLICATION %s DROP TABLE %s", name, names.Table.SQL())
		what = fmt.Sprintf("removed table %s from publication %s, which also publishes %s",
			names.Table, name, printed(others))
	}
	if _, err := slot.Query(ctx, conn, drop); err != nil {
		return done, fmt.Errorf("%s: %w", strings.ToLower(drop), err)
	}
	return append(done, what), nil
}

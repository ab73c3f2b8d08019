package provision

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// readOwnSlot reads the slot, and fails if it is not a relay's slot in this database.
func readOwnSlot(ctx context.Context, conn *pgconn.PgConn, name string) (slot.Slot, error) {
	s, err := slot.Read(ctx, conn, name)
	if found := s.Unusable(); err == nil && found != nil {
		err = found
	}
	return s, err
}

// useless returns why the slot must be created again, or "".
func useless(s slot.Slot, names Names) string {
	switch {
	case names.Failover && !s.Failover:
		return "it is no failover slot"
	case names.NoWAL:
		return "its WAL is gone"
	case s.Lost():
		return strings.TrimSpace("invalidated by the server " + s.Invalidated)
	case s.LagBytes < 0:
		// The server was restored or failed over. It would skip rows silently up to this position.
		return fmt.Sprintf("confirmed %s, ahead of the server's WAL by %d bytes",
			pglogrepl.LSN(s.Confirmed), -s.LagBytes)
	}
	return ""
}

// ensureSlot creates the slot if it is missing and returns one line about it; "": it existed. Creating a slot waits for
// all transactions that hold a transaction id, at most for wait; zero: as long as ctx.
func ensureSlot(ctx context.Context, conn *pgconn.PgConn, names Names, wait time.Duration) (string, error) {
	s, err := readOwnSlot(ctx, conn, names.Slot)
	if err != nil || s.Exists() {
		return "", err
	}
	options := names.slotOptions()
	if err := createSlot(ctx, conn, names.Slot, slot.CreateSQL(names.Slot, options), wait); err != nil {
		return "", err
	}
	kind := "slot "
	if options.Failover {
		kind = "failover slot "
	}
	return "created " + kind + names.Slot, nil
}

// slotOptions returns the options of a new slot.
func (n Names) slotOptions() slot.Options {
	n.Found.Failover = n.Found.Failover || n.Failover
	return n.Found
}

// createSlot runs a statement that creates a slot. Wait is that of ensureSlot.
func createSlot(ctx context.Context, conn *pgconn.PgConn, name, sql string, wait time.Duration) error {
	// A separate statement, because the function fails in a transaction that has written. The server's least timeout is
	// one millisecond; zero means none. Other timeouts of the role could end the statement earlier.
	if wait > 0 {
		wait = max(wait, time.Millisecond)
	}
	type timeout struct {
		name   string
		millis int64
	}
	timeouts := []timeout{{"statement_timeout", wait.Milliseconds()}, {"lock_timeout", 0}}
	if major(conn) >= 17 {
		timeouts = append(timeouts, timeout{"transaction_timeout", 0}) // it would end the connection
	}
	for _, t := range timeouts {
		if _, err := slot.Query(ctx, conn, fmt.Sprintf("SET %s = %d", t.name, t.millis)); err != nil {
			return fmt.Errorf("create slot %s: %w", name, err)
		}
	}
	_, err := slot.Query(ctx, conn, sql)
	if conn.IsClosed() {
		return fmt.Errorf("create slot %s: %w", name, err)
	}
	for _, t := range timeouts {
		if _, resetErr := slot.Query(ctx, conn, "RESET "+t.name); resetErr != nil {
			return fmt.Errorf("create slot %s: %w", name, errors.Join(err, resetErr))
		}
	}
	if err == nil || pgcode.Is(err, pgerrcode.DuplicateObject) { // another relay was faster
		return nil
	}
	return slotProblem(ctx, conn, name, err)
}

func slotProblem(ctx context.Context, conn *pgconn.PgConn, name string, err error) error {
	switch pgcode.Of(err) {
	case pgerrcode.QueryCanceled:
		return slotBlocked(ctx, conn, name, err)
	case pgerrcode.InsufficientPrivilege:
		return slot.RoleProblem(currentUser(ctx, conn), err)
	case pgerrcode.InvalidName:
		return problem.Of(err, "# choose another name with --slot: a-z, 0-9 and _, at most 63",
			"a slot cannot be named %s", outbox.QuoteLiteral(name))
	case pgerrcode.ConfigurationLimitExceeded:
		return problem.Of(err, "SELECT slot_name, active FROM pg_replication_slots;  "+
			"-- drop an unused one, or raise max_replication_slots and restart Postgres", "no replication slot is free")
	}
	return fmt.Errorf("create slot %s: %w", name, err)
}

// Full reports whether the server has no free slot or no free replication connection. One may become free.
func Full(err error) bool {
	return pgcode.Is(err, pgerrcode.ConfigurationLimitExceeded, pgerrcode.TooManyConnections)
}

// SlotBlockedError is returned while creating the slot waits for running transactions. Try again later.
type SlotBlockedError struct {
	Slot     string
	Blockers []problem.Blocker // the oldest first
	Err      error
}

func (e *SlotBlockedError) Error() string {
	if len(e.Blockers) == 0 {
		return fmt.Sprintf("creating slot %s waited for transactions that were open when it began; they have ended",
			e.Slot)
	}
	all := make([]string, len(e.Blockers))
	for i, b := range e.Blockers {
		all[i] = b.String()
	}
	return fmt.Sprintf("creating slot %s waits for transactions that were open when it began: %s",
		e.Slot, strings.Join(all, ", "))
}

// Hint says how to end the oldest transaction.
func (e *SlotBlockedError) Hint() string {
	if len(e.Blockers) == 0 {
		return "# wait until the transactions end"
	}
	return e.Blockers[0].End()
}

func (e *SlotBlockedError) Unwrap() error { return e.Err }

func slotBlocked(ctx context.Context, conn *pgconn.PgConn, name string, cause error) error {
	rows, err := slot.Query(ctx, conn, "SELECT pid, gid, program, details FROM ("+problem.WritersSQL+") w LIMIT 5")
	if err != nil {
		return errors.Join(cause, err)
	}
	blocked := &SlotBlockedError{Slot: name, Err: cause}
	for _, r := range rows {
		pid, _ := strconv.ParseInt(r[0], 10, 64) // an integer of the server
		blocked.Blockers = append(blocked.Blockers, problem.Blocker{PID: pid, GID: r[1], Program: r[2], Details: r[3]})
	}
	return blocked
}

func dropSlot(ctx context.Context, conn *pgconn.PgConn, name string) error {
	_, err := slot.Query(ctx, conn, slot.DropSQL(name))
	if err != nil && !pgcode.Is(err, pgerrcode.UndefinedObject) {
		return fmt.Errorf("drop slot %s: %w", name, err)
	}
	return nil
}

// currentUser returns the role, or "current_user" if the server does not answer.
func currentUser(ctx context.Context, conn *pgconn.PgConn) string {
	rows, err := slot.Query(ctx, conn, "SELECT current_user")
	if err != nil {
		return "current_user"
	}
	return rows[0][0]
}

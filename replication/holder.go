package replication

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"
)

// Holder is who holds the slot, as the database shows it to a relay that stands by.
type Holder struct {
	// PID is the server process that streams to it; "" for nobody.
	PID string
	// Began is when that process began, which tells it from an earlier one with its id; ""
	// where the role may not see it.
	Began string
	// Heard changes with each status update of the holder's; "" where there was none yet,
	// or where the role may not see it (another role's, without pg_read_all_stats).
	Heard string
	// Waits tells that the server process waits for the holder or for new WAL, so that it
	// would have heard of it. One that decodes may not listen for a while.
	Waits bool
}

// Holder asks who holds the slot, without trying to take it: a try that fails stands
// in the server's log.
func (s *Stream) Holder(ctx context.Context) (Holder, error) {
	rows, err := query(ctx, s.conn, `
SELECT coalesce(s.active_pid::text, ''), coalesce(r.reply_time::text, ''), coalesce(a.wait_event ILIKE 'walsender%', false),
  coalesce(a.backend_start::text, '')
FROM pg_catalog.pg_replication_slots s
LEFT JOIN pg_catalog.pg_stat_replication r ON r.pid = s.active_pid
LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid
WHERE s.slot_name = `+literal(s.names.Slot))
	if err != nil {
		return Holder{}, fmt.Errorf("ask who holds slot %s: %w", s.names.Slot, err)
	}
	if len(rows) == 0 {
		return Holder{}, ErrSlotGone
	}
	return Holder{PID: rows[0][0], Heard: rows[0][1], Waits: rows[0][2] == "t", Began: rows[0][3]}, nil
}

// Process is a server process that streams, or has.
type Process struct {
	// PID is as pg_replication_slots shows it.
	PID uint32
	// Began tells it from another one with its PID; "" where that is not known.
	Began string
}

// Process is the server's that streams; known after Start. It may be called from any
// goroutine while Run runs.
func (s *Stream) Process() Process { return s.process }

// ownProcess is the one behind a connection. The one in the protocol's key
// data may be a pooler's.
func ownProcess(ctx context.Context, conn *pgconn.PgConn) (Process, error) {
	rows, err := query(ctx, conn, `
SELECT pid, (SELECT a.backend_start FROM pg_catalog.pg_stat_activity a WHERE a.pid = own.pid) FROM pg_catalog.pg_backend_pid() own(pid)`)
	if err != nil {
		return Process{}, fmt.Errorf("read the server process: %w", err)
	}
	pid, err := strconv.ParseUint(rows[0][0], 10, 32)
	return Process{PID: uint32(pid), Began: rows[0][1]}, err
}

// Is tells whether the process holds the slot.
func (h Holder) Is(p Process) bool {
	return p.Began != "" && h.Began == p.Began && h.PID == strconv.FormatUint(uint64(p.PID), 10)
}

// EndHolder ends the server process of a holder that is silent, and so frees the slot;
// the server itself would wait for wal_sender_timeout. Nothing happens where somebody
// else holds the slot by now. A role may end its own processes.
func (s *Stream) EndHolder(ctx context.Context, h Holder) error {
	_, err := query(ctx, s.conn, `
SELECT pg_terminate_backend(active_pid) FROM pg_catalog.pg_replication_slots
WHERE slot_name = `+literal(s.names.Slot)+` AND active_pid::text = `+literal(h.PID))
	if err != nil {
		return fmt.Errorf("end the silent holder of slot %s: %w", s.names.Slot, err)
	}
	return nil
}

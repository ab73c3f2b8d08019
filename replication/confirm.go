package replication

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/slot"
)

// Unlimited means that the slot may be confirmed at each position that was received.
const Unlimited = pglogrepl.LSN(math.MaxUint64)

// muchWAL is how many bytes of WAL may pass before an early status. Otherwise the slot would retain two seconds of WAL.
const muchWAL = 8 << 20

// writeTimeout bounds one status update. Only a peer that has stopped reading delays it.
const writeTimeout = 10 * time.Second

// Commits finds out up to which position the slot may be confirmed. A walsender that reports a flush position is a
// candidate for synchronous_standby_names, where "*" is the name of all: COMMITs of the whole server would wait for the
// relay, or count it as a copy. So the relay then reports only positions for which no COMMIT waits any more.
type Commits struct {
	flushed pglogrepl.LSN
	next    uint64 // all COMMITs at or before flushed belong to earlier transactions
}

// COMMIT waits for standbys before its transaction leaves the snapshot. An xid is newer than xmax if nothing newer has
// ended, so the next xid is read by its age. It is read after the position.
const commitsSQL = `SELECT pg_catalog.pg_current_wal_flush_lsn(), pg_catalog.pg_snapshot_xmin(s),
  pg_catalog.pg_snapshot_xmax(s), pg_catalog.age(pg_catalog.pg_snapshot_xmax(s)::pg_catalog.xid),
  pg_catalog.current_setting('synchronous_standby_names')
FROM pg_catalog.pg_current_snapshot() s`

// Ask returns the end of the flushed WAL, which a stream that keeps up passes soon. Confirm is the position up to which
// no COMMIT waits for a standby, which takes two calls to find out; Unlimited: none ever waits.
func (c *Commits) Ask(ctx context.Context, conn *pgconn.PgConn) (flushed, confirm pglogrepl.LSN, err error) {
	rows, err := slot.Query(ctx, conn, commitsSQL)
	if err != nil {
		return 0, 0, fmt.Errorf("read the WAL position: %w", err)
	}
	if flushed, err = pglogrepl.ParseLSN(rows[0][0]); err != nil {
		return 0, 0, err
	}
	var xids [3]uint64 // xmin, xmax, and how many newer ones there are
	for i := range xids {
		if xids[i], err = strconv.ParseUint(rows[0][1+i], 10, 64); err != nil {
			return 0, 0, fmt.Errorf("read the snapshot: %w", err)
		}
	}
	if rows[0][4] == "" {
		return flushed, Unlimited, nil
	}
	if xids[0] >= c.next {
		confirm = c.flushed
		c.flushed, c.next = flushed, xids[1]+xids[2]
	}
	return flushed, confirm, nil
}

// Confirm allows the stream to confirm the slot up to a position; see Commits. It may be called from any goroutine.
func (s *Stream) Confirm(position pglogrepl.LSN) { s.confirmable.Store(uint64(position)) }

// confirmEvery is how often a limited position is confirmed. The server may log each time that it has a new standby.
const confirmEvery = 10 * time.Second

// sendStatus reports the received position. If there is a limit, it is not reported as flushed: now and then one status
// confirms the slot, and the next one, in the same write, takes the flush position back.
func (s *Stream) sendStatus(askForReply bool) error {
	s.told = s.received
	if err := s.conn.Conn().SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return fmt.Errorf("send status: %w", err)
	}
	var data []byte
	flushed := s.received
	if limit := pglogrepl.LSN(s.confirmable.Load()); limit != Unlimited {
		flushed = 0
		limit = min(limit, s.received)
		if now := time.Now(); limit > s.confirmed && now.Sub(s.confirmedAt) > confirmEvery {
			s.confirmed, s.confirmedAt = limit, now
			data = appendStatus(data, limit, limit, false)
		}
	}
	s.confirmed = max(s.confirmed, flushed)
	data = appendStatus(data, s.received, flushed, askForReply)
	if err := s.conn.Frontend().SendUnbufferedEncodedCopyData(data); err != nil {
		return fmt.Errorf("send status: %w", err)
	}
	return nil
}

// appendStatus appends a status. pglogrepl cannot report that nothing was flushed.
func appendStatus(data []byte, written, flushed pglogrepl.LSN, askForReply bool) []byte {
	const length, year2000 = 4 + 1 + 4*8 + 1, 946_684_800_000_000 // the server's epoch, in microseconds
	data = append(data, 'd')
	data = binary.BigEndian.AppendUint32(data, length)
	data = append(data, pglogrepl.StandbyStatusUpdateByteID)
	for _, position := range []pglogrepl.LSN{written, flushed, flushed} { // the last one: applied
		data = binary.BigEndian.AppendUint64(data, uint64(position))
	}
	data = binary.BigEndian.AppendUint64(data, uint64(time.Now().UnixMicro()-year2000))
	if askForReply {
		return append(data, 1)
	}
	return append(data, 0)
}

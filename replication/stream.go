// Package replication owns the replication connection and its stream. It passes pgoutput messages on as bytes and does
// not read them. Package internal/provision creates and repairs what it needs.
//
// It differs from other readers of a slot in two ways (docs/architecture.md). The stream starts at the current WAL
// position at each connection. Every position is confirmed when it is received. The table has the missed rows.
package replication

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"sync/atomic"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/rawnet"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Handler receives the stream. Only the goroutine of Stream.Run calls it. The socket waits while a method runs.
type Handler interface {
	// WAL receives one pgoutput message, which is valid until WAL returns. It returns the position up to which
	// everything was received, or zero inside a transaction.
	WAL(data []byte) (pglogrepl.LSN, error)
	// Passed receives the position of the stream, even if nothing was published. WAL has received every transaction
	// whose commit record starts before it.
	// The first call means that the stream has reached its start; before that, the server may have to read much older
	// WAL.
	Passed(position pglogrepl.LSN)
	// Alive is called at each message of the server. At is the local time of receipt, sent is the server's time of
	// sending.
	Alive(at, sent time.Time)
	// Idle is called when all received messages were passed to WAL, before Run waits for more.
	Idle()
}

// Stream is one replication connection. Only one goroutine may use it, and must close it.
type Stream struct {
	conn *pgconn.PgConn
	// read has the received bytes that conn has not read.
	read   *bufio.Reader
	source Source
	// statusEvery is how often a status is sent, which asks for an answer.
	statusEvery time.Duration
	// deadAfter is how long the server may be silent.
	deadAfter time.Duration
	// received is the newest position up to which everything was received.
	received pglogrepl.LSN
	// told is the position in the last status, confirmed the newest one at which the slot was confirmed.
	told, confirmed pglogrepl.LSN
	confirmedAt     time.Time
	// confirmable is the position up to which the slot may be confirmed.
	confirmable atomic.Uint64
	// caughtUp: the server has reached the position of the start.
	caughtUp bool
	// inside: a transaction has started to arrive, and its commit has not arrived.
	inside bool
}

// Source is what a stream reads.
type Source struct {
	Table       outbox.Table
	Publication string
	Slot        string
}

// readAtOnce is in bytes. The driver reads eight kilobytes at a time, a dozen rows.
const readAtOnce = 64 << 10

// Parameters returns the startup parameters of a replication connection, except application_name. A pooler can reject
// each of them.
func Parameters() map[string]string {
	return map[string]string{
		"replication":                   "database",
		"default_transaction_read_only": "off",     // the publication may have to be created
		"client_min_messages":           "warning", // Postgres 18 warns about a missing publication
		"client_encoding":               "UTF8",    // other values are binary: no setting changes their form
	}
}

// Connect opens a replication connection. It does not need the publication or the slot yet: see Conn.
func Connect(ctx context.Context, address pgdial.Address, source Source) (*Stream, error) {
	s := &Stream{source: source}
	config, err := address.Config()
	if err != nil {
		return nil, fmt.Errorf("read the address of Postgres: %w", err)
	}
	maps.Copy(config.RuntimeParams, Parameters())
	config.RuntimeParams["application_name"] = slot.Application(source.Table)
	pgdial.AsUTF8(config)
	pgdial.CatalogOnly(config)
	pgdial.Limit(config)
	config.DialFunc = rawnet.Dial(config.DialFunc)
	config.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		s.read = bufio.NewReaderSize(r, readAtOnce)
		return pgproto3.NewFrontend(s.read, w)
	}
	s.conn, err = pgconn.ConnectConfig(ctx, config)
	if pgcode.Is(err, pgerrcode.InsufficientPrivilege) {
		return nil, slot.RoleProblem(config.User, err)
	}
	if pgcode.Is(err, pgerrcode.TooManyConnections) {
		return nil, problem.Of(err, "SELECT pid, application_name, client_addr FROM pg_stat_replication;  "+
			"-- stop an unused client, or raise max_wal_senders (or max_connections) and restart Postgres",
			"no connection for replication is free")
	}
	if err != nil {
		return nil, fmt.Errorf("connect for replication: %w", err)
	}
	timeout, err := walSenderTimeout(ctx, s.conn)
	if err != nil {
		s.Close()
		return nil, err
	}
	s.statusEvery, s.deadAfter = intervals(timeout)
	return s, nil
}

// Conn returns the connection, for statements before Start.
func (s *Stream) Conn() *pgconn.PgConn { return s.conn }

// intervals returns how often to send a status, and how long the server may be silent. Several statuses fit into
// wal_sender_timeout. Each asks for an answer, because steady statuses suppress the server's keepalives (seen on PG
// 15). A walsender with a large transaction answers late, so the silence is the server's own timeout.
func intervals(walSenderTimeout time.Duration) (statusEvery, deadAfter time.Duration) {
	const usual = time.Minute
	if walSenderTimeout <= 0 {
		walSenderTimeout = usual
	}
	statusEvery = min(max(walSenderTimeout/6, 50*time.Millisecond), 2*time.Second)
	return statusEvery, max(walSenderTimeout, 10*time.Second)
}

// ErrSlotActive is returned if another process uses the slot.
var ErrSlotActive = errors.New("the slot is in use")

// Slot reads the slot and its owner. It does not try to take the slot: a failed try is an error in the server's log.
func (s *Stream) Slot(ctx context.Context) (slot.Slot, error) {
	return slot.Read(ctx, s.conn, s.source.Slot)
}

// Start takes the slot and starts the stream at the current WAL position, which it returns. The handler receives every
// transaction whose commit record lies at or after it, and none before. ErrSlotActive: another relay was faster; close
// the stream.
func (s *Stream) Start(ctx context.Context) (pglogrepl.LSN, error) {
	state, err := s.Slot(ctx)
	if err != nil {
		return 0, err
	}
	if state.Active() { // perhaps by the session that creates it; its position is not known then
		return 0, ErrSlotActive
	}
	start, confirm, err := new(Commits).Ask(ctx, s.conn)
	if err != nil {
		return 0, err
	}
	s.Confirm(confirm)
	// The server uses the greater of the two anyway.
	start = max(start, pglogrepl.LSN(state.Confirmed))
	// Binary: half the bytes and less work for bytea, and no date styles.
	options := pglogrepl.StartReplicationOptions{
		Mode: pglogrepl.LogicalReplication,
		PluginArgs: []string{
			"proto_version '1'",
			"publication_names " + option(word(s.source.Publication)),
			"binary 'true'",
		},
	}
	// pglogrepl does not quote the slot's name. Quoted, "1st" and "select" work too.
	err = pglogrepl.StartReplication(ctx, s.conn, word(s.source.Slot), start, options)
	switch {
	case pgcode.Is(err, pgerrcode.ObjectInUse):
		return 0, ErrSlotActive
	case err != nil:
		return 0, fmt.Errorf("start replication from slot %s: %w", s.source.Slot, err)
	}
	s.received, s.confirmed = start, pglogrepl.LSN(state.Confirmed)
	return start, nil
}

// Run reads until ctx is done (and returns nil), the connection fails, or the handler returns an error. No status is
// sent while the handler runs, so it must return within about a second.
func (s *Stream) Run(ctx context.Context, handler Handler) error {
	socket := s.conn.Conn()
	// A deadline in the past ends a waiting read. The loop sets a new deadline only before it checks ctx again.
	stop := context.AfterFunc(ctx, func() { _ = socket.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()

	now := time.Now()
	nextStatus, heard := now, now // a status at once: the first answer shows that the stream is live
	var pace coalescer
	for ; ; now = time.Now() {
		if !now.Before(nextStatus) {
			if err := s.sendStatus(true); err != nil {
				return err
			}
			nextStatus = now.Add(s.nextStatus())
			_ = socket.SetReadDeadline(nextStatus)
		}
		if ctx.Err() != nil {
			return nil
		}
		waits := s.conn.Frontend().ReadBufferLen() == 0 && s.read.Buffered() == 0
		if waits {
			handler.Idle()
		}
		between := waits && !s.inside
		if between {
			pace.wait()
		}
		// Background: a context for each message would cost a goroutine each.
		message, err := s.conn.ReceiveMessage(context.Background())
		if err != nil {
			if !pgconn.Timeout(err) && !isTimeout(err) {
				return fmt.Errorf("read the replication stream: %w", err)
			}
			handler.Idle()
			if silent := time.Since(heard); silent > s.deadAfter {
				return fmt.Errorf("the server was silent for %s", silent.Round(time.Second))
			}
			continue
		}
		heard = time.Now()
		if between {
			pace.woke(heard)
		}
		if err := s.handle(message, heard, handler); err != nil {
			return err
		}
	}
}

func endedError(m *pgproto3.ErrorResponse) error {
	return fmt.Errorf("the server ended the stream: %w", pgconn.ErrorResponseToPgError(m))
}

// nextStatus returns the time to the next status. Until the stream has caught up, it asks for the position often.
func (s *Stream) nextStatus() time.Duration {
	const often = 100 * time.Millisecond
	if !s.caughtUp {
		return min(s.statusEvery, often)
	}
	return s.statusEvery
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

func (s *Stream) handle(message pgproto3.BackendMessage, at time.Time, handler Handler) error {
	switch m := message.(type) {
	case *pgproto3.CopyData:
		return s.copyData(m.Data, at, handler)
	case *pgproto3.ErrorResponse:
		return endedError(m)
	case *pgproto3.CopyDone, *pgproto3.CommandComplete, *pgproto3.ReadyForQuery:
		return errors.New("the server ended the stream")
	case *pgproto3.NoticeResponse:
		// Compare the function's name, because the message may be translated.
		if m.Routine == "LoadPublications" {
			return fmt.Errorf("%w: %s", errPublicationSkipped, m.Message)
		}
	}
	return nil // other notices and parameter changes
}

func (s *Stream) copyData(data []byte, at time.Time, handler Handler) error {
	if len(data) == 0 {
		return errors.New("empty message in the replication stream")
	}
	switch data[0] {
	case pglogrepl.XLogDataByteID:
		wal, err := pglogrepl.ParseXLogData(data[1:])
		if err != nil {
			return err
		}
		handler.Alive(at, wal.ServerTime)
		position, err := handler.WAL(wal.WALData)
		if err != nil {
			return err
		}
		s.inside = position == 0
		if !s.inside {
			s.passed(position, handler)
		}
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		keepalive, err := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
		if err != nil {
			return err
		}
		handler.Alive(at, keepalive.ServerTime)
		// Keepalives may also come inside a transaction. They then have the position of the last message, which is
		// before the commit.
		s.passed(keepalive.ServerWALEnd, handler)
		if keepalive.ReplyRequested {
			return s.sendStatus(false) // a stopping server waits for this answer
		}
		if s.received-s.told >= muchWAL {
			return s.sendStatus(true)
		}
	}
	return nil
}

// passed never moves back: confirming an older position is ignored at best.
func (s *Stream) passed(position pglogrepl.LSN, handler Handler) {
	if position >= s.received {
		s.caughtUp = true
		s.received = position
		handler.Passed(position)
	}
}

// Close ends the connection and frees the slot. It takes at most 200 ms.
func (s *Stream) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	_ = s.conn.Close(ctx)
}

// WALGone reports whether the server no longer has the WAL that the slot needs, although its catalog does not say so.
// The slot must be dropped and created again.
func WALGone(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == pgerrcode.UndefinedFile && pgErr.Routine == "WalSndSegmentOpen"
}

// errPublicationSkipped: Postgres 18 and later only warn, and send nothing.
var errPublicationSkipped = errors.New("the server leaves the publication out")

// PublicationGone reports whether the publication was missing at the decoded position. Up to
// Postgres 17 this is an error of the server, SQLSTATE 42704.
func PublicationGone(err error) bool {
	return pgcode.Is(err, pgerrcode.UndefinedObject) || errors.Is(err, errPublicationSkipped)
}

// Package replication owns the replication connection, the publication and the
// slot. It hands on pgoutput messages as bytes and knows nothing of what stands
// in them.
//
// Two choices set it apart from other readers of a slot (docs/architecture.md):
// the stream starts at the present, at each connect, and every position is
// confirmed on receipt. What it missed is in the table.
package replication

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

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

// Handler takes what the stream receives. Its methods are called by the
// goroutine in Stream.Run alone, and hold up the socket while they run.
type Handler interface {
	// WAL takes one pgoutput message, valid until it returns. It returns the
	// position up to which everything was received, or zero inside a transaction.
	WAL(data []byte) (pglogrepl.LSN, error)
	// Passed is told how far the stream has come, also where nothing was published:
	// every transaction whose commit record starts before it was handed to WAL. The
	// first call tells that the stream has caught up with its start: the server may
	// have to read much older WAL before.
	Passed(position pglogrepl.LSN)
	// Alive is called whenever the server was heard of, with the time, and when it sent that by its own clock.
	Alive(at, sent time.Time)
	// Idle is called when all that has arrived was handed to WAL, before more is waited for.
	Idle()
}

// Stream is one replication connection. It belongs to one goroutine, which
// calls its methods one after the other, and Close at the end.
type Stream struct {
	conn *pgconn.PgConn
	// read holds what was received and not yet taken by conn.
	read  *bufio.Reader
	names Names
	// statusEvery is how often the server hears of us, and is asked to answer.
	statusEvery time.Duration
	// deadAfter is how long it may be silent.
	deadAfter time.Duration
	// received is the newest position that everything was received up to.
	received pglogrepl.LSN
	// told is the position of the newest status.
	told pglogrepl.LSN
	// caughtUp tells that the server has come to the position of the start.
	caughtUp bool
	// inside tells that a transaction has begun to arrive, and its commit has not.
	inside bool
	// process is the server's behind the connection.
	process slot.Process
}

// muchWAL, in bytes, is how far the server may go on before it is told again: by time
// alone the slot would retain two seconds of WAL.
const muchWAL = 8 << 20

// writeTimeout bounds one status update: amqp and disk are not in its way, only
// a peer that has stopped reading.
const writeTimeout = 10 * time.Second

// Open connects and brings publication and slot in line: what is missing is made,
// a slot that the server invalidated is recreated. It returns what it changed.
// It does not take the slot yet.
func Open(ctx context.Context, databaseURL string, names Names, wait time.Duration) (*Stream, []Change, error) {
	s, err := connect(ctx, databaseURL, names)
	if err != nil {
		return nil, nil, err
	}
	done, err := s.prepare(ctx, wait)
	if err != nil {
		s.Close()
		return nil, done, err
	}
	return s, done, nil
}

// readAtOnce, in bytes: the driver alone reads eight kilobytes at a time, a dozen rows.
const readAtOnce = 64 << 10

func connect(ctx context.Context, databaseURL string, names Names) (*Stream, error) {
	s := &Stream{names: names}
	config, err := pgconn.ParseConfig(databaseURL)
	if err != nil {
		return nil, err
	}
	config.RuntimeParams["replication"] = "database"
	config.RuntimeParams["application_name"] = slot.Application(names.Table)
	config.RuntimeParams["default_transaction_read_only"] = "off" // the publication may have to be made
	config.RuntimeParams["client_min_messages"] = "warning"       // Postgres 18 warns of a missing publication
	// Values in text form shall not depend on the settings of role or database.
	config.RuntimeParams["client_encoding"] = "UTF8"
	config.RuntimeParams["DateStyle"] = "ISO"
	config.RuntimeParams["TimeZone"] = "UTC"
	pgdial.Limit(config)
	config.DialFunc = rawnet.Dial(config.DialFunc)
	config.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		s.read = bufio.NewReaderSize(r, readAtOnce)
		return pgproto3.NewFrontend(s.read, w)
	}
	s.conn, err = pgconn.ConnectConfig(ctx, config)
	if pgcode.Is(err, pgcode.InsufficientPrivilege) {
		return nil, replicationRoleProblem(config.User, err)
	}
	if pgcode.Is(err, pgcode.TooManyConnections) {
		return nil, &problem.Problem{
			What: "no connection for replication is free",
			Fix:  "raise max_wal_senders (or max_connections) and restart Postgres, or stop a client that is not used: SELECT * FROM pg_stat_replication",
			Err:  err,
		}
	}
	if err != nil {
		return nil, fmt.Errorf("connect for replication: %w", err)
	}
	return s, nil
}

func (s *Stream) prepare(ctx context.Context, wait time.Duration) ([]Change, error) {
	timeout, err := walSenderTimeout(ctx, s.conn)
	if err != nil {
		return nil, err
	}
	s.statusEvery, s.deadAfter = intervals(timeout)
	return Setup(ctx, s.conn, s.names, wait)
}

// intervals: several status updates within the server's timeout, each asking for
// an answer, since steady updates suppress the server's own keepalives (seen on
// PG 15). The silence allowed is the server's own, as a walsender that works through
// a large transaction answers late.
func intervals(walSenderTimeout time.Duration) (statusEvery, deadAfter time.Duration) {
	const usual = time.Minute
	if walSenderTimeout <= 0 {
		walSenderTimeout = usual
	}
	statusEvery = min(max(walSenderTimeout/6, 50*time.Millisecond), 2*time.Second)
	return statusEvery, max(walSenderTimeout, 10*time.Second)
}

// ErrSlotActive tells that another process uses the slot.
var ErrSlotActive = errors.New("the slot is in use")

// Slot reads the slot and who owns it, without an attempt to take it: one that fails stands in the server's log.
func (s *Stream) Slot(ctx context.Context) (slot.Slot, error) {
	return slot.Read(ctx, s.conn, s.names.Slot)
}

// Terminate ends a process of the server.
func (s *Stream) Terminate(ctx context.Context, p slot.Process) error {
	return p.Terminate(ctx, s.conn)
}

// Process is the server's that streams; known after Start. It may be called from any goroutine while Run runs.
func (s *Stream) Process() slot.Process { return s.process }

// Start takes the slot and starts the stream at the present. It returns the
// position of the start: every transaction whose commit record lies at or after
// it will be handed to the handler, none before. ErrSlotActive where another relay
// was quicker; the stream is then to be closed.
func (s *Stream) Start(ctx context.Context) (pglogrepl.LSN, error) {
	state, err := s.Slot(ctx)
	if err != nil {
		return 0, err
	}
	if state.Active() { // by the session that creates it, perhaps; then its position is not known yet
		return 0, ErrSlotActive
	}
	start, err := flushedLSN(ctx, s.conn)
	if err != nil {
		return 0, err
	}
	if s.process, err = slot.Own(ctx, s.conn); err != nil {
		return 0, err
	}
	// The server would start at the greater of the two anyway.
	start = max(start, pglogrepl.LSN(state.Confirmed))
	// Binary: half the bytes and less work for bytea, and no question of date styles.
	options := pglogrepl.StartReplicationOptions{
		Mode: pglogrepl.LogicalReplication,
		PluginArgs: []string{
			"proto_version '1'",
			"publication_names " + option(outbox.QuoteIdentifier(s.names.Publication)),
			"binary 'true'",
		},
	}
	// pglogrepl writes the slot's name as it is; quoted, "1st" and "select" work too.
	err = pglogrepl.StartReplication(ctx, s.conn, outbox.QuoteIdentifier(s.names.Slot), start, options)
	switch {
	case pgcode.Is(err, pgcode.ObjectInUse):
		return 0, ErrSlotActive
	case err != nil:
		return 0, fmt.Errorf("start replication from slot %s: %w", s.names.Slot, err)
	}
	s.received = start
	return start, nil
}

// Run reads until ctx is done (and returns nil), the connection fails, or the
// handler returns an error. While the handler takes its time no status is sent:
// it must return within a second or so.
func (s *Stream) Run(ctx context.Context, handler Handler) error {
	socket := s.conn.Conn()
	// The deadline in the past ends a read that waits; the loop below sets a new
	// one only before it looks at ctx again.
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
		// Background: a context of its own per message would cost a goroutine each.
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

// nextStatus: at first the server is asked often how far it has come.
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
		return fmt.Errorf("the server ended the stream: %w", pgconn.ErrorResponseToPgError(m))
	case *pgproto3.CopyDone, *pgproto3.CommandComplete, *pgproto3.ReadyForQuery:
		return errors.New("the server ended the stream")
	case *pgproto3.NoticeResponse:
		// By the server's function, since the message itself may be translated.
		if m.Routine == "LoadPublications" {
			return fmt.Errorf("%w: %s", errPublicationSkipped, m.Message)
		}
	}
	return nil // other notices, and parameter changes
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
		// The server sends keepalives between messages of one transaction too, but
		// then with the position of the last message sent, before its commit.
		s.passed(keepalive.ServerWALEnd, handler)
		if keepalive.ReplyRequested {
			return s.sendStatus(false) // a server that stops waits for this answer
		}
		if s.received-s.told >= muchWAL {
			return s.sendStatus(true)
		}
	}
	return nil
}

// passed moves on, never back: confirming an older position is at best ignored.
func (s *Stream) passed(position pglogrepl.LSN, handler Handler) {
	if position >= s.received {
		s.caughtUp = true
		s.received = position
		handler.Passed(position)
	}
}

func (s *Stream) sendStatus(askForReply bool) error {
	s.told = s.received
	if err := s.conn.Conn().SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return fmt.Errorf("send status: %w", err)
	}
	// All three are set: pglogrepl fills zeros in by itself.
	err := pglogrepl.SendStandbyStatusUpdate(context.Background(), s.conn, pglogrepl.StandbyStatusUpdate{
		WALWritePosition: s.received,
		WALFlushPosition: s.received,
		WALApplyPosition: s.received,
		ReplyRequested:   askForReply,
	})
	if err != nil {
		return fmt.Errorf("send status: %w", err)
	}
	return nil
}

// Close ends the connection and frees the slot at once. It takes at most 200 ms.
func (s *Stream) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	_ = s.conn.Close(ctx)
}

// WALGone tells whether a stream ended because the server has not got the WAL any more that the
// slot needs, though its catalog says nothing of it: DropSlot, so that Open makes another.
func WALGone(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == pgcode.UndefinedFile && pgErr.Routine == "WalSndSegmentOpen"
}

// errPublicationSkipped: Postgres 18 and later only warn, and send nothing.
var errPublicationSkipped = errors.New("the server leaves the publication out")

// PublicationGone tells whether a stream ended because its publication is missing
// at the position being decoded: Open makes it again. Up to Postgres 17 that is an
// error of the server's, SQLSTATE 42704.
func PublicationGone(err error) bool {
	return pgcode.Is(err, pgcode.UndefinedObject) || errors.Is(err, errPublicationSkipped)
}

package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cdc-relay/cdc-relay/decode"
	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/outagelog"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/relay/metrics"
	"github.com/cdc-relay/cdc-relay/replication"
	"github.com/cdc-relay/cdc-relay/store"
)

// streamer keeps the replication stream of the leader: it connects, streams, and starts again after any error. One
// goroutine calls run.
type streamer struct {
	address  pgdial.Address
	names    provision.Names
	core     *core.Core
	store    *store.Store
	apply    func(core.Out)
	log      *slog.Logger
	counts   *metrics.Metrics
	alive    *heartbeat
	trouble  *outagelog.Log
	progress streamProgress
	// clock is the last comparison of the server's clock with that of this process. Sent is when the server sent the
	// newest message, on both clocks. Only run's goroutine uses sent.
	clock *atomic.Pointer[core.ServerClock]
	sent  core.ServerClock
	rows  streamedRows
	// streams: a stream has begun and has not ended.
	streams atomic.Bool
	// opened: the configuration of the database was found correct once. Until then, a wrong configuration ends the
	// relay. Only run's goroutine uses it.
	opened bool
}

// streamProgress is how far the stream has come. Run's goroutine writes it, unless a field says otherwise; others read.
type streamProgress struct {
	// caughtUp: the stream has reached its start. Before that, the server may have to read older WAL.
	caughtUp atomic.Bool
	// position is how far the stream has come, messages how many it has brought.
	position, messages atomic.Uint64
	// heard is when the stream last brought something, in nanoseconds of Unix time; 0: never.
	heard atomic.Int64
	// lagging: the stream lags behind; only the inspector writes it. behind logs that.
	lagging atomic.Bool
	behind  *outagelog.Log
}

const (
	// askSlot is how often the leader looks at a slot that is in use.
	askSlot = 100 * time.Millisecond
	// openTimeout bounds connecting, and each check.
	openTimeout = 15 * time.Second
	// silence is how long the server may be silent before the relay sweeps as without a stream. The server answers at
	// least every two seconds.
	silence = 6 * time.Second
)

const streamDown = "stream is down: retrying, and publishing rows from the table"

// run streams until ctx is done. It returns an error only if no retry can help.
func (s *streamer) run(ctx context.Context) error {
	wait, unread := newBackoff(), newUnreadBackoff()
	slotWait := 5 * time.Second // for a slot that waits for open transactions
	for {
		started, err := s.once(ctx, slotWait)
		if ctx.Err() != nil {
			return nil
		}
		if errors.As(err, new(*decode.MissingColumnError)) || !s.opened && fatal(err) {
			return err
		}
		var blocked *provision.SlotBlockedError
		if errors.As(err, &blocked) {
			slotWait = min(slotWait*6, 10*time.Minute)
		}
		s.trouble.Report(event.StreamDown, streamDown, err)
		pause := wait
		if started {
			wait.Reset()
		}
		switch {
		case !started:
		case s.progress.caughtUp.Load():
			unread.Reset()
		default:
			pause = unread
		}
		s.names.NoWAL = replication.WALGone(err)
		if sleep(ctx, pause.NextBackOff()) != nil {
			return nil
		}
	}
}

// changed logs a repair of the slot or the publication, after somebody dropped it or the server invalidated it. Before
// the first row nothing can have been lost: the relay creates what setup did not.
func (s *streamer) changed(ctx context.Context, change provision.Change) {
	switch last, ok, err := s.store.LastID(ctx); {
	case err == nil && ok && last == 0:
		s.log.Info(change.Text+"; no row was inserted before", "event", change.Event, "slot", s.names.Slot)
	default:
		s.log.Warn(change.Text+"; publishing missed rows from the table", "event", change.Event, "slot", s.names.Slot)
	}
}

// once serves one connection. Started: it has streamed.
func (s *streamer) once(ctx context.Context, slotWait time.Duration) (started bool, err error) {
	stream, err := s.open(ctx, slotWait)
	if err != nil {
		return false, err
	}
	defer stream.Close()
	if err := s.freeSlot(ctx, stream); err != nil {
		return false, err
	}
	startCtx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if _, err := stream.Start(startCtx); err != nil {
		return false, err
	}
	if err := s.begin(ctx); err != nil {
		return false, err
	}
	defer s.endStream()
	return true, s.stream(ctx, stream)
}

// freeSlot waits until the slot is free. It terminates a stream of the table: that is this relay's last one, of which
// the server has not noticed the lost connection, or that of the former leader, which is paused or cut off.
func (s *streamer) freeSlot(ctx context.Context, stream *replication.Stream) error {
	for {
		s.alive.beat()
		seen, err := s.readSlot(ctx, stream)
		owner, taken := seen.Owner(), seen.Taken(s.names.Table)
		switch {
		case err != nil || !seen.Active():
			return err
		case seen.Unusable() != nil:
			return seen.Unusable()
		case seen.Creating():
		case taken != nil:
			s.trouble.Report(event.SlotTaken, "slot is in use: retrying, and publishing rows from the table", taken)
		case s.core.Certain():
			s.log.Info("terminating the stream of a lost connection or of the former leader",
				"event", event.OwnerTerminated, "slot", s.names.Slot, "owner", owner.String())
			if err := owner.Terminate(ctx, stream.Conn()); err != nil {
				return err
			}
		}
		if err := sleep(ctx, askSlot); err != nil {
			return err
		}
	}
}

func (s *streamer) readSlot(ctx context.Context, stream *replication.Stream) (slot.Slot, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	seen, err := stream.Slot(ctx)
	if seen.Exists() {
		s.names.Found = seen.Options
	}
	return seen, err
}

func (s *streamer) connect(ctx context.Context) (*replication.Stream, error) {
	return replication.Connect(ctx, s.address,
		replication.Source{Table: s.names.Table, Publication: s.names.Publication, Slot: s.names.Slot})
}

// open connects, and creates or repairs publication and slot.
func (s *streamer) open(ctx context.Context, slotWait time.Duration) (*replication.Stream, error) {
	openCtx, cancel := context.WithTimeout(ctx, openTimeout+slotWait)
	defer cancel()
	s.alive.beatFor(openTimeout + slotWait)
	defer s.alive.beat()
	stream, err := s.connect(openCtx)
	if err != nil {
		return nil, err
	}
	done, err := provision.Setup(openCtx, stream.Conn(), s.names, slotWait)
	for _, change := range done {
		s.changed(openCtx, change)
	}
	if err != nil {
		stream.Close()
		return nil, err
	}
	s.opened = true
	return stream, nil
}

// begin begins the stream: rows that committed before its start are swept.
func (s *streamer) begin(ctx context.Context) error {
	walEnd, err := s.store.Position(ctx)
	if err != nil {
		return err
	}
	s.rows = streamedRows{decoder: decode.NewDecoder(s.names.Table, s.rows.headers...), headers: s.rows.headers}
	s.progress.caughtUp.Store(false)
	s.progress.lagging.Store(false)
	s.core.StreamBegan(walEnd, s.store.Restarts())
	s.streams.Store(true)
	s.counts.Streams(true)
	s.trouble.Over(event.StreamUp, "stream is up again")
	return nil
}

func (s *streamer) endStream() {
	s.core.StreamEnded()
	s.streams.Store(false)
	s.counts.Streams(false)
	s.progress.behind.Over(event.StreamCaughtUp, "stream that lagged behind has ended")
}

// stream reads until the connection ends, or until watch ends it.
func (s *streamer) stream(ctx context.Context, stream *replication.Stream) error {
	streamCtx, end := context.WithCancelCause(ctx)
	var watcher sync.WaitGroup
	watcher.Go(func() { end(s.watch(streamCtx, stream)) })
	err := stream.Run(streamCtx, s)
	s.Idle()
	if err == nil && ctx.Err() == nil {
		err = context.Cause(streamCtx)
	}
	end(nil)
	watcher.Wait()
	if replication.PublicationGone(err) {
		return fmt.Errorf("the publication is gone: %w", err)
	}
	return err
}

// fatal reports whether the error needs a person. A server without a free slot or connection may have one later.
func fatal(err error) bool { return problem.Is(err) && !provision.Full(err) }

// preflight reports a wrong configuration at the start. Other obstacles may pass; until then, rows are published from
// the table.
func (s *streamer) preflight(ctx context.Context) error {
	stream, err := s.open(ctx, time.Second)
	switch {
	case err == nil:
		stream.Close()
	case fatal(err):
		return err
	case ctx.Err() == nil:
		s.trouble.Report(event.StreamDown, streamDown, err)
	}
	return nil
}

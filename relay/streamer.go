package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/decode"
	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/outagelog"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/relay/metrics"
	"github.com/cdc-relay/cdc-relay/replication"
	"github.com/cdc-relay/cdc-relay/store"
)

// streamer keeps the replication stream: it connects, waits for the slot, streams, and starts again after any error.
// One goroutine calls run.
type streamer struct {
	databaseURL string
	names       replication.Names
	core        *core.Core
	store       *store.Store
	apply       func(core.Out)
	phase       func() publish.Phase // of the publisher
	log         *slog.Logger
	counts      *metrics.Metrics
	alive       *heartbeat
	trouble     *outagelog.Log
	behind      *outagelog.Log // while the stream lags
	// serverStopping is signalled when the server takes no connections because it stops.
	serverStopping chan struct{}
	// waitsFor is the owner of the slot while this relay is a standby, else nil. Health reads it.
	waitsFor atomic.Pointer[slot.Process]
	// caughtUp: the stream has reached its start. Before that, the server may have to read older WAL. Only run's
	// goroutine writes it.
	caughtUp atomic.Bool
	// position is how far the stream has come, messages how many it has brought. Only run's goroutine writes them.
	// lagging: the stream lags behind; only the inspector writes it.
	position, messages atomic.Uint64
	lagging            atomic.Bool
	// heard is when the stream last brought something, in nanoseconds of Unix time; 0: never. Only run's goroutine
	// writes it.
	heard atomic.Int64
	// clock is the last comparison with the server's clock.
	clock atomic.Pointer[core.ServerClock]

	// Only run's goroutine uses the fields below.

	decoder *decode.Decoder
	budget  waitBudget
	// leaving are rows to publish, collected so that few writes send them.
	leaving []*outbox.Message
	// announced is the last role in the log.
	announced event.Name
	// wasOwn: since this relay owned the slot, it has seen no other owner.
	wasOwn bool
	// told is the last time passed to core.Owned.
	told    time.Time
	headers []string // columns that are sent as headers
	// sent is when the server sent the newest message, on both clocks.
	sent core.ServerClock
	// last is the server process of the last stream.
	last slot.Process
	// opened: the configuration of the database was found correct once. Until then, a wrong configuration ends the
	// relay.
	opened bool
}

const (
	// askSlot is how often a standby looks at the slot.
	askSlot = 250 * time.Millisecond
	// openTimeout bounds connecting, and each check.
	openTimeout = 15 * time.Second
	// silence is how long the server may be silent before the relay sweeps as without a stream, or a standby takes
	// over. The server answers at least every two seconds.
	silence = 6 * time.Second
	// watchEvery is how often server and broker are checked.
	watchEvery = time.Second
)

// mostLeaving is how many rows are collected at most.
const mostLeaving = 64

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
		var missing *decode.MissingColumnError
		if errors.As(err, &missing) || errors.Is(err, replication.ErrOtherSplit) || (!s.opened && fatal(err)) {
			return err
		}
		var blocked *replication.SlotBlockedError
		if errors.As(err, &blocked) {
			slotWait = min(slotWait*6, 10*time.Minute)
		}
		if !errors.Is(err, errHandedOver) && !errors.Is(err, replication.ErrSlotActive) { // a standby is announced
			s.trouble.Report(event.StreamDown, streamDown, err)
		}
		pause := wait
		if started {
			wait.Reset()
		}
		switch {
		case !started || errors.Is(err, replication.ErrSlotActive):
		case s.caughtUp.Load():
			unread.Reset()
		default:
			pause = unread
		}
		if replication.WALGone(err) {
			s.dropSlot(ctx)
		}
		if sleep(ctx, pause.NextBackOff()) != nil {
			return nil
		}
	}
}

// dropSlot drops a slot without WAL. The next connection creates a new one.
func (s *streamer) dropSlot(ctx context.Context) {
	dropCtx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	line, err := replication.DropSlot(dropCtx, s.databaseURL, s.names, "its WAL is gone")
	if err != nil {
		s.log.Warn("cannot drop the slot without WAL: publishing rows from the table; retrying", "event", event.SlotDropFailed, "slot", s.names.Slot, "error", pgdial.Text(err))
	}
	if line != "" {
		s.changed(ctx, replication.Change{Event: event.SlotDropped, Text: line})
	}
}

// changed logs a repair of the slot or the publication, after somebody dropped it or the server invalidated it. Before the
// first row nothing can have been lost: the relay makes what setup did not.
func (s *streamer) changed(ctx context.Context, change replication.Change) {
	switch last, ok, err := s.store.LastID(ctx); {
	case err == nil && ok && last == 0:
		s.log.Info(change.Text+"; no row was inserted before", "event", change.Event, "slot", s.names.Slot)
	case change.Err != nil:
		s.log.Warn(change.Text+"; publishing rows from the table until the server has read this WAL", "event", change.Event, "slot", s.names.Slot,
			"error", pgdial.Text(change.Err), "hint", "# wait for the event streaming; or remove the cause in error and restart this relay")
	default:
		s.log.Warn(change.Text+"; publishing missed rows from the table", "event", change.Event, "slot", s.names.Slot)
	}
}

// once serves one connection. Started: it has streamed, or another relay took the slot first.
func (s *streamer) once(ctx context.Context, slotWait time.Duration) (started bool, err error) {
	stream, err := s.open(ctx, slotWait)
	if err != nil {
		return false, err
	}
	defer stream.Close()
	free, err := s.awaitSlot(ctx, stream)
	if err != nil {
		return false, err
	}
	startCtx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if err := stream.SetReady(startCtx, false); err != nil {
		return false, err
	}
	position, err := stream.Start(startCtx)
	if errors.Is(err, replication.ErrSlotActive) {
		return true, err // another relay was faster; awaitSlot waits
	}
	if err != nil {
		return false, err
	}
	// Relays with another number of shards may have started at the same time.
	if err := checkSplit(startCtx, s.store, s.names); err != nil {
		return false, err
	}
	err = s.lead(ctx, position, stream.Process().PID, free)
	if errors.Is(err, errReplaced) {
		err = stream.EndedBy(err) // the server may have failed at once, because the slot's WAL or the publication is gone
	}
	if err != nil {
		return false, err
	}
	defer s.letGo()
	s.last, s.wasOwn = stream.Process(), true
	return true, s.stream(ctx, stream)
}

func (s *streamer) open(ctx context.Context, slotWait time.Duration) (*replication.Stream, error) {
	openCtx, cancel := context.WithTimeout(ctx, openTimeout+slotWait)
	defer cancel()
	s.alive.beatFor(openTimeout + slotWait)
	defer s.alive.beat()
	stream, done, err := replication.Open(openCtx, s.databaseURL, s.names, slotWait)
	for _, change := range done {
		s.changed(openCtx, change)
	}
	s.opened = s.opened || err == nil
	return stream, err
}

// lead begins the term. Rows that are in the table now are swept, once a previous leader can no longer publish them.
func (s *streamer) lead(ctx context.Context, position pglogrepl.LSN, pid uint32, free time.Time) error {
	boundary, ok, err := s.store.LastID(ctx)
	if err != nil {
		return err
	}
	if !ok {
		boundary = math.MaxInt64 // without a sequence, new rows cannot be told from older ones
	}
	walEnd, err := s.store.Position(ctx)
	if err != nil {
		return err
	}
	s.decoder = decode.NewDecoder(s.names.Table, s.headers...)
	s.budget = waitBudget{}
	s.caughtUp.Store(false)
	s.lagging.Store(false)
	select {
	case <-s.serverStopping: // an old signal
	default:
	}
	taken := core.Slot{Boundary: boundary, PID: pid, Start: uint64(position), WALEnd: walEnd}
	if !s.wasOwn {
		taken.FreeSince = free
	}
	s.core.TookSlot(taken)
	s.told = time.Time{}
	if err := s.ask(ctx, pid); err != nil {
		s.core.LostSlot()
		return err
	}
	s.counts.Streams(true)
	s.trouble.Over(event.StreamUp, "stream is up again")
	s.announce(event.LeaderStarted, "took the slot: this relay is the leader, and publishes older rows from the table", "start", position.String())
	return nil
}

func (s *streamer) letGo() {
	s.core.LostSlot()
	s.counts.Streams(false)
	s.announced = ""
	s.behind.Over(event.StreamCaughtUp, "stream that lagged behind has ended")
}

// stream reads until the connection ends. A watcher tells the core if the server falls silent, and ends the stream if
// the slot has another owner. An inspector ends a stream that brings nothing.
func (s *streamer) stream(ctx context.Context, stream *replication.Stream) error {
	streamCtx, end := context.WithCancelCause(ctx)
	var watchers sync.WaitGroup
	watchers.Go(func() { s.watch(streamCtx, stream.Process().PID, end) })
	watchers.Go(func() { s.inspect(streamCtx, stream.Process().PID, end) })
	err := stream.Run(streamCtx, s)
	s.Idle()
	if err == nil && ctx.Err() == nil {
		err = context.Cause(streamCtx)
	}
	end(nil)
	watchers.Wait()
	if replication.PublicationGone(err) {
		return fmt.Errorf("the publication is gone: %w", err)
	}
	return err
}

// errServerStops ends the stream while the server shuts down. The server would wait until all WAL is sent, which may be
// much. The table keeps the missed rows.
var errServerStops = errors.New("the server accepts no connections: it is stopping")

var errSilent = fmt.Errorf("the server has sent nothing for %s", silence)

// errReplaced ends the stream of a relay that lost the slot while it was paused or disconnected.
var errReplaced = errors.New("another relay took the slot, or the server ended the stream, while this process was paused or disconnected")

func (s *streamer) watch(ctx context.Context, pid uint32, end context.CancelCauseFunc) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	var broker brokerOutage
	silent := 0 // how many looks in a row found the server silent; one may follow a pause of this process
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if broker.since(s.phase(), now) > handOverAfter && s.standbyIsReady(ctx) {
				s.log.Warn("RabbitMQ unreachable: handing the slot to a standby that can publish", "event", event.SlotHandedOver, "slot", s.names.Slot)
				end(errHandedOver)
				return
			}
			heard := s.alive.age() < silence
			s.core.StreamLive(s.caughtUp.Load() && !s.lagging.Load() && heard)
			if silent++; heard {
				silent = 0
				s.trouble.Over(event.StreamUp, "stream is up again")
			}
			if silent > 1 {
				s.trouble.Report(event.StreamDown, "stream is silent: publishing rows from the table too", errSilent)
			}
		case <-s.core.Doubted:
			if err := s.ask(ctx, pid); errors.Is(err, errReplaced) {
				end(err)
				return
			}
		case <-s.serverStopping:
			end(errServerStops)
			return
		}
	}
}

// ask asks the database whether this server process still owns the slot, and for its time. Without an answer, rows wait
// in the stream, and then stay in the table.
func (s *streamer) ask(ctx context.Context, pid uint32) error {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	owner, err := s.store.SlotOwner(ctx, s.names.Slot)
	switch {
	case err != nil:
		return err
	case owner.PID != pid:
		return errReplaced
	}
	s.clock.Store(&core.ServerClock{Ours: owner.Asked, Server: owner.Answers})
	s.core.Owned(owner.Asked)
	return nil
}

// announce logs each change of the role once.
func (s *streamer) announce(name event.Name, what string, args ...any) {
	if name != s.announced {
		s.announced = name
		s.log.Info(what, append([]any{"event", name, "slot", s.names.Slot}, args...)...)
	}
}

// Alive implements replication.Handler. A message may have been on the network for long, so only its sending time
// counts.
func (s *streamer) Alive(at, sent time.Time) {
	s.alive.last.Store(at.UnixNano())
	s.heard.Store(at.UnixNano())
	owned := s.clock.Load().AtLeast(sent)
	if owned.After(at) {
		owned = at // a clock was set meanwhile
	}
	s.sent = core.ServerClock{Ours: owned, Server: sent}
	const often = 20 * time.Millisecond // not for each row
	if owned.Sub(s.told) > often {
		s.told = owned
		s.core.Owned(owned)
	}
}

// Idle implements replication.Handler: it publishes the collected rows.
func (s *streamer) Idle() {
	if n := len(s.leaving); n > 0 && s.log.Enabled(context.Background(), slog.LevelDebug) {
		s.log.Debug("publishing streamed rows", "rows", n, "first_id", s.leaving[0].ID, "last_id", s.leaving[n-1].ID)
	}
	s.apply(core.Out{Publish: s.leaving})
	clear(s.leaving)
	s.leaving = s.leaving[:0]
}

// Passed implements replication.Handler.
func (s *streamer) Passed(position pglogrepl.LSN) {
	s.position.Store(uint64(position))
	s.core.Passed(uint64(position))
	if !s.caughtUp.Load() {
		s.caughtUp.Store(true)
		s.core.StreamLive(true)
		s.announce(event.Streaming, "streaming: this relay publishes rows when they are committed", "position", position.String())
	}
}

// WAL implements replication.Handler: it decodes one message, and passes a row on. It waits for room at most as long as
// its budget lasts.
func (s *streamer) WAL(data []byte) (pglogrepl.LSN, error) {
	s.messages.Add(1)
	event, err := s.decoder.Decode(data)
	if err != nil {
		return 0, s.unreadable(err)
	}
	switch event.Kind {
	case decode.Begin:
		s.core.Began(event.XID)
	case decode.Commit:
		return event.EndLSN, nil
	case decode.Insert:
		event.Message.CommittedAt = s.decoder.CommittedAt()
		if expires := event.Message.ExpiresAt; expires != nil {
			event.Message.Deadline = new(s.sent.AtLeast(*expires))
		}
		s.insert(event.Message, uint64(event.CommitLSN))
	}
	return 0, nil
}

// unreadable continues the stream after a row that cannot be decoded.
func (s *streamer) unreadable(err error) error {
	var row *decode.RowError
	if !errors.As(err, &row) {
		return fmt.Errorf("decode the stream: %w", err)
	}
	s.counts.Undecodable()
	s.log.Error("cannot decode streamed row: retrying from the table", "event", event.RowUndecodable, "error", pgdial.Text(err))
	s.core.Unread()
	return nil
}

func (s *streamer) insert(m *outbox.Message, commitLSN uint64) {
	for {
		began := time.Now()
		left := s.budget.left(began)
		out, v := s.core.Streamed(m, commitLSN, left > 0)
		switch v {
		case core.NoRoom:
			s.Idle()
			s.awaitRoom(left)
			s.budget.spent(began, time.Now())
			continue
		case core.Taken:
			if s.leaving = append(s.leaving, out.Publish...); len(s.leaving) >= mostLeaving {
				s.Idle()
			}
			if s.budget.waited > 0 && s.core.View().Eased {
				s.budget = waitBudget{}
			}
		case core.Left:
			s.counts.LeftInTable()
		}
		return
	}
}

func (s *streamer) awaitRoom(atMost time.Duration) {
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	select {
	case <-s.core.Room:
	case <-timer.C:
	}
}

// fatal reports whether the error needs a person. A server without a free slot or connection may have one later.
func fatal(err error) bool { return problem.Is(err) && !replication.Full(err) }

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

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
	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/internal/signal"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/relay/metrics"
	"github.com/cdc-relay/cdc-relay/replication"
	"github.com/cdc-relay/cdc-relay/store"
)

// streamer keeps the replication stream: it connects, waits for the slot, streams, and starts again after any error.
// One goroutine calls run.
type streamer struct {
	address pgdial.Address
	names   provision.Names
	core    *core.Core
	store   *store.Store
	apply   func(core.Out)
	phase   func() publish.Phase // of the publisher, in an outage that this relay has found
	// connection is the publisher's own phase, with the number of its answers.
	connection func() (phase publish.Phase, answers int)
	log        *slog.Logger
	counts     *metrics.Metrics
	alive      *heartbeat
	trouble    *outagelog.Log
	// serverStopping is signalled when the server takes no connections because it stops.
	serverStopping signal.Signal
	progress       streamProgress
	clocks         streamClocks
	owner          slotOwnership
	rows           streamedRows
	// latestRetry is the longest wait before a retry.
	latestRetry time.Duration
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

// streamClocks compare the server's clock with that of this process.
type streamClocks struct {
	// server is the last comparison.
	server atomic.Pointer[core.ServerClock]
	// sent is when the server sent the newest message, on both clocks. told is the last time passed to core.Owned. Only
	// run's goroutine uses them.
	sent core.ServerClock
	told time.Time
}

// slotOwnership is what the streamer remembers of the slot's owner. Only run's goroutine writes it.
type slotOwnership struct {
	// waitsFor is the owner of the slot while this relay is a standby, else nil. Health reads it.
	waitsFor atomic.Pointer[slot.Process]
	// last is the server process of the last stream.
	last slot.Process
	// wasOwn: since this relay owned the slot, it has seen no other owner.
	wasOwn bool
	// announced is the last role in the log.
	announced event.Name
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
		if errors.As(err, &missing) || errors.Is(err, provision.ErrOtherSplit) || (!s.opened && fatal(err)) {
			return err
		}
		var blocked *provision.SlotBlockedError
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
		case s.progress.caughtUp.Load():
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
	var line string
	stream, err := s.connect(dropCtx)
	if err == nil {
		line, err = provision.DropSlot(dropCtx, stream.Conn(), s.names, "its WAL is gone")
		stream.Close()
	}
	if err != nil {
		s.log.Warn("cannot drop the slot without WAL: publishing rows from the table; retrying",
			"event", event.SlotDropFailed, "slot", s.names.Slot, "error", pgdial.Text(err))
	}
	if line != "" {
		s.changed(ctx, provision.Change{Event: event.SlotDropped, Text: line})
	}
}

// changed logs a repair of the slot or the publication, after somebody dropped it or the server invalidated it. Before
// the first row nothing can have been lost: the relay creates what setup did not.
func (s *streamer) changed(ctx context.Context, change provision.Change) {
	switch last, ok, err := s.store.LastID(ctx); {
	case err == nil && ok && last == 0:
		s.log.Info(change.Text+"; no row was inserted before", "event", change.Event, "slot", s.names.Slot)
	case change.Err != nil:
		s.log.Warn(change.Text+"; publishing rows from the table until the server has read this WAL",
			"event", change.Event, "slot", s.names.Slot, "error", pgdial.Text(change.Err),
			"hint", "# wait for the event streaming; or remove the cause in error and restart this relay")
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
	vacant, err := s.awaitSlot(ctx, stream)
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
	free := vacant.since(time.Now())
	// Relays with another number of shards may have started at the same time.
	if err := checkSplit(startCtx, s.store, s.names); err != nil {
		return false, err
	}
	err = s.lead(ctx, position, stream.Process().PID, free)
	if errors.Is(err, errReplaced) {
		// The server may have failed at once, because the slot's WAL or the publication is gone.
		err = stream.EndedBy(err)
	}
	if err != nil {
		return false, err
	}
	defer s.endTerm()
	s.owner.last, s.owner.wasOwn = stream.Process(), true
	return true, s.stream(ctx, stream)
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

// lead begins the term. Rows that are in the table now are swept, once a previous leader can no longer publish them.
func (s *streamer) lead(ctx context.Context, position pglogrepl.LSN, pid uint32, free time.Time) error {
	server := s.store.Restarts()
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
	s.rows.decoder = decode.NewDecoder(s.names.Table, s.rows.headers...)
	s.rows.budget = waitBudget{}
	s.progress.caughtUp.Store(false)
	s.progress.lagging.Store(false)
	select {
	case <-s.serverStopping: // an old signal
	default:
	}
	taken := core.Slot{Boundary: boundary, PID: pid, Server: server, Start: uint64(position), WALEnd: walEnd}
	if !s.owner.wasOwn {
		taken.FreeSince = free
	}
	s.core.TookSlot(taken)
	s.clocks.told = time.Time{}
	err = s.ask(ctx, pid)
	if err == nil && s.store.Restarts() != server {
		err = errServerChanged
	}
	if err != nil {
		s.core.LostSlot()
		return err
	}
	s.counts.Streams(true)
	s.trouble.Over(event.StreamUp, "stream is up again")
	s.announce(event.LeaderStarted, "took the slot: this relay is the leader, and publishes older rows from the table",
		"start", position.String())
	return nil
}

func (s *streamer) endTerm() {
	s.core.LostSlot()
	s.counts.Streams(false)
	s.owner.announced = ""
	s.progress.behind.Over(event.StreamCaughtUp, "stream that lagged behind has ended")
}

// stream reads until the connection ends. A watcher tells the core if the server falls silent, and ends the stream if
// the slot has another owner. An inspector ends a stream that brings nothing.
func (s *streamer) stream(ctx context.Context, stream *replication.Stream) error {
	streamCtx, end := context.WithCancelCause(ctx)
	var watchers sync.WaitGroup
	watchers.Go(func() { s.watch(streamCtx, stream.Process().PID, end) })
	watchers.Go(func() { s.inspect(streamCtx, stream, end) })
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

// errServerChanged: what was read before may be of the earlier server.
var errServerChanged = errors.New("the server was restarted or replaced while the stream started")

// errReplaced ends the stream of a relay that lost the slot while it was paused or disconnected.
var errReplaced = errors.New("another relay took the slot, or the server ended the stream," +
	" while this process was paused or disconnected")

func (s *streamer) watch(ctx context.Context, pid uint32, end context.CancelCauseFunc) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	broker := brokerOutage{took: time.Now()}
	_, broker.answers = s.connection()
	silent := 0 // how many looks in a row found the server silent; one may follow a pause of this process
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			phase, answers := s.connection()
			if broker.handsOver(phase, answers, now) && s.standbyIsReady(ctx) {
				s.log.Warn("publisher unavailable: handing the slot to a standby that can publish",
					"event", event.SlotHandedOver, "slot", s.names.Slot)
				end(errHandedOver)
				return
			}
			heard := s.alive.age() < silence
			s.core.StreamLive(s.progress.caughtUp.Load() && !s.progress.lagging.Load() && heard)
			if silent++; heard {
				silent = 0
				s.trouble.Over(event.StreamUp, "stream is up again")
			}
			if silent > 1 {
				s.trouble.Report(event.StreamDown, "stream is silent: publishing rows from the table too", errSilent)
			}
			if s.phase() == stuck && s.standbyIsReady(ctx) {
				s.log.Warn("relay stuck: handing the slot to a standby that works",
					"event", event.SlotHandedOver, "slot", s.names.Slot)
				end(errHandedOver)
				return
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
	s.clocks.server.Store(&core.ServerClock{Ours: owner.Asked, Server: owner.Answers})
	s.core.Owned(owner.Asked)
	return nil
}

// announce logs each change of the role once.
func (s *streamer) announce(name event.Name, what string, args ...any) {
	if name != s.owner.announced {
		s.owner.announced = name
		s.log.Info(what, append([]any{"event", name, "slot", s.names.Slot}, args...)...)
	}
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

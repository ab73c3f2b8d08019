package relay

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/replication"
	"github.com/cdc-relay/cdc-relay/store"
)

// slotRest is how long a free slot is left alone: until then the relay that owned it may publish what it had received,
// without a mark, and the broker may get it. If only its connection broke, it is back before.
const slotRest = outbox.CertainFor + outbox.WriteFor + wayToBroker

const wayToBroker = 400 * time.Millisecond

// awaitSlot waits while another process owns the slot, and then until a free one may be taken. It terminates a relay's that
// was not heard of for long, and that of this relay's own last stream if the server has not noticed that its connection was
// lost.
func (s *streamer) awaitSlot(ctx context.Context, stream *replication.Stream) error {
	defer s.waitsFor.Store(nil)
	var other watched
	var freeSince time.Time // zero: somebody owns the slot
	told := false
	for {
		s.alive.beat()
		seen, err := s.readSlot(ctx, stream, &told)
		if err != nil {
			return err
		}
		owner, taken, pause := seen.Owner(), seen.Taken(s.names.Table), askSlot
		switch {
		case seen.Active():
			freeSince = time.Time{}
		case freeSince.IsZero():
			freeSince = time.Now()
		}
		switch {
		case !seen.Active():
			left, err := s.leftFree(ctx, stream, freeSince)
			if err != nil || left <= 0 {
				return err
			}
			pause = min(pause, left)
		case seen.Unusable() != nil:
			return seen.Unusable()
		case taken != nil:
			s.waitsFor.Store(nil)
			s.trouble.report(streamDown, taken, "event", "slot_taken")
		case seen.Creating():
			s.announce("waiting for the slot: it is being created", "by", seen.Process.String())
		case other.silentFor(owner, time.Now()) > silence:
			s.log.Warn("slot owner unresponsive: terminating its connection and taking over",
				"event", "owner_terminated", "slot", s.names.Slot, "owner", owner.String(), "silent_for", silence)
			if err := terminate(ctx, stream, owner); err != nil {
				return err
			}
			other, s.wasOwn = watched{}, false
		case owner.Is(s.last) && s.waitsFor.Load() != nil: // mostly it ends by itself, before it is asked for again
			s.log.Info("the last stream of this relay still owns the slot: terminating its connection",
				"slot", s.names.Slot, "owner", owner.String())
			if err := terminate(ctx, stream, owner); err != nil {
				return err
			}
		default:
			s.waitsFor.Store(&owner)
			if !owner.Is(s.last) {
				s.wasOwn = false
				s.announce("standing by: another relay owns the slot", "owner", owner.String())
			}
			s.trouble.over("connected to Postgres again")
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// leftFree is how long a free slot is still to be left alone: until it has rested, and while another relay could publish
// and this one could not.
func (s *streamer) leftFree(ctx context.Context, stream *replication.Stream, since time.Time) (time.Duration, error) {
	if left := slotRest - time.Since(since); left > 0 && !s.wasOwn {
		return left, nil
	}
	if s.phase() == publish.Ready {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if ready, err := stream.StandbyIsReady(ctx); !ready {
		return 0, err
	}
	return askSlot, nil
}

// readSlot reads the slot, and tells the others whether this relay could publish.
func (s *streamer) readSlot(ctx context.Context, stream *replication.Stream, told *bool) (slot.Slot, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if ready := s.phase() == publish.Ready; ready != *told {
		if err := stream.SetReady(ctx, ready); err != nil {
			return slot.Slot{}, err
		}
		*told = ready
	}
	return stream.Slot(ctx)
}

func terminate(ctx context.Context, stream *replication.Stream, owner slot.Process) error {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	return stream.Terminate(ctx, owner)
}

// watched is the owner of the slot as this relay has seen it change. The times are this relay's: the owner's clock may
// differ.
type watched struct {
	pid   uint32
	heard string
	since time.Time
	// looked is when it was looked at last.
	looked time.Time
}

// silentFor is how long the owner was not heard of, as far as that can be told: a server process that decodes has not
// listened to it, and a server that has not answered for long may have heard nobody.
func (w *watched) silentFor(owner slot.Process, now time.Time) time.Duration {
	late := now.Sub(w.looked) > silence/2
	if w.looked = now; late || owner.PID != w.pid || owner.Heard != w.heard || owner.Heard == "" {
		w.pid, w.heard, w.since = owner.PID, owner.Heard, now
	}
	if !owner.Listens {
		return 0
	}
	return now.Sub(w.since)
}

// slotNow reads a slot on a connection of the pool.
func slotNow(ctx context.Context, db *store.Store, name string) (seen slot.Slot, err error) {
	err = db.Conn(ctx, func(conn *pgx.Conn) error {
		seen, err = slot.Read(ctx, conn.PgConn(), name)
		return err
	})
	return seen, err
}

// checkSplit refuses to publish beside relays of another number of shards: their rows are on their way there.
func checkSplit(ctx context.Context, db *store.Store, names replication.Names) error {
	return db.Conn(ctx, func(conn *pgx.Conn) error { return replication.CheckSplit(ctx, conn.PgConn(), names) })
}

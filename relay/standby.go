package relay

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/replication"
	"github.com/cdc-relay/cdc-relay/store"
)

// lateCopies is for how long after a slot was seen free the relay that owned it may publish what it had received, without
// a mark, and the broker may get it.
const lateCopies = outbox.CertainFor + outbox.WriteFor + wayToBroker

const wayToBroker = 200 * time.Millisecond

// headStart is how long a slot is left to the relay that owned it: if only its connection broke, it is back before.
const headStart = 300 * time.Millisecond

// awaitSlot waits until the slot may be taken, and returns since when it was seen free. It terminates a relay's process that
// was not heard of for long, and that of this relay's own last stream if the server has not noticed that its connection was
// lost.
func (s *streamer) awaitSlot(ctx context.Context, stream *replication.Stream) (freeSince time.Time, err error) {
	defer s.waitsFor.Store(nil)
	var other watched
	told, standby := false, false
	for {
		s.alive.beat()
		seen, err := s.readSlot(ctx, stream, &told)
		if err != nil {
			return freeSince, err
		}
		owner, taken, pause := seen.Owner(), seen.Taken(s.names.Table), askSlot
		switch {
		case seen.Active():
			freeSince = time.Time{}
		case freeSince.IsZero():
			freeSince = time.Now()
		}
		switch {
		case !seen.Active() && standby && time.Since(freeSince) < headStart:
			pause = min(pause, headStart-time.Since(freeSince))
		case !seen.Active():
			if others, err := s.othersTurn(ctx, stream); err != nil || !others {
				return freeSince, err
			}
		case seen.Unusable() != nil:
			return freeSince, seen.Unusable()
		case taken != nil:
			s.waitsFor.Store(nil)
			s.trouble.report(event.SlotTaken, "slot is in use: retrying, and publishing rows from the table", taken)
		case seen.Creating():
			s.announce(event.SlotCreating, "waiting for the slot: another session is creating it", "by", seen.Process.String())
		case other.silentFor(owner, time.Now()) > silence:
			s.log.Warn("slot owner unresponsive: terminating its connection and taking over",
				"event", event.OwnerTerminated, "slot", s.names.Slot, "owner", owner.String(), "silent_for", silence)
			if err := terminate(ctx, stream, owner); err != nil {
				return freeSince, err
			}
			other, s.wasOwn = watched{}, false
		case owner.Is(s.last) && s.waitsFor.Load() != nil: // mostly it ends by itself, before it is asked for again
			s.log.Info("this relay's lost connection still owns the slot: terminating it",
				"event", event.OwnStreamTerminated, "slot", s.names.Slot, "owner", owner.String())
			if err := terminate(ctx, stream, owner); err != nil {
				return freeSince, err
			}
		default:
			s.waitsFor.Store(&owner)
			if !owner.Is(s.last) {
				s.wasOwn, standby = false, true
				s.announce(event.StandbyStarted, "standby: another relay owns the slot", "owner", owner.String())
			}
			s.trouble.over(event.StreamUp, "stream is up again: this relay is a standby")
		}
		if err := sleep(ctx, pause); err != nil {
			return freeSince, err
		}
	}
}

// othersTurn tells whether a free slot is left to another relay: one that could publish, while this one could not.
func (s *streamer) othersTurn(ctx context.Context, stream *replication.Stream) (bool, error) {
	if s.phase() == publish.Ready {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	return stream.StandbyIsReady(ctx)
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

// silentFor is how long the owner was not heard of, or 0 if that cannot be told: a server process that decodes has not
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

// unused is for how long certainly no relay has owned a slot. Before Postgres 17 the server tells only if there is none.
func unused(seen slot.Slot) time.Duration {
	switch {
	case !seen.Exists():
		return lateCopies
	case seen.InactiveSeconds != nil:
		return time.Duration(*seen.InactiveSeconds * float64(time.Second))
	}
	return 0
}

// checkSplit is an error beside relays of another number of shards: their rows are on their way there.
func checkSplit(ctx context.Context, db *store.Store, names replication.Names) error {
	return db.Conn(ctx, func(conn *pgx.Conn) error { return replication.CheckSplit(ctx, conn.PgConn(), names) })
}

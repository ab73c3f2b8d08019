package relay

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/replication"
	"github.com/cdc-relay/cdc-relay/store"
)

// leftToOwner is how long a standby leaves a free slot to its former owner. If only the connection broke, the owner is
// back by then.
const leftToOwner = 300 * time.Millisecond

// awaitSlot waits until this relay may take the slot, and returns what it saw of it. It terminates the
// connection of a relay that has been silent for too long. It also terminates this relay's own last stream if the
// server has not noticed the lost connection.
func (s *streamer) awaitSlot(ctx context.Context, stream *replication.Stream) (v vacancy, err error) {
	defer s.owner.waitsFor.Store(nil)
	var other watched
	told, standby := false, false
	for {
		s.alive.beat()
		seen, err := s.readSlot(ctx, stream, &told)
		if err != nil {
			return v, err
		}
		owner, taken, pause := seen.Owner(), seen.Taken(s.names.Table), askSlot
		v.saw(seen, time.Now())
		switch {
		case !seen.Active() && standby && time.Since(v.free) < leftToOwner:
			pause = min(pause, leftToOwner-time.Since(v.free))
		case !seen.Active():
			if others, err := s.othersTurn(ctx, stream); err != nil || !others {
				return v, err
			}
		case seen.Unusable() != nil:
			return v, seen.Unusable()
		case taken != nil:
			s.owner.waitsFor.Store(nil)
			s.trouble.Report(event.SlotTaken, "slot is in use: retrying, and publishing rows from the table", taken)
		case seen.Creating():
			s.announce(event.SlotCreating, "waiting for the slot: another session is creating it",
				"by", seen.Process.String())
		case other.silentFor(owner, time.Now()) > silence:
			if err := terminate(ctx, stream, owner); err != nil {
				return v, err
			}
			s.log.Warn("slot owner unresponsive: terminated its connection, taking over",
				"event", event.OwnerTerminated, "slot", s.names.Slot, "owner", owner.String(), "silent_for", silence)
			other, s.owner.wasOwn = watched{}, false
		case owner.Is(s.owner.last) && s.owner.waitsFor.Load() != nil:
			// Usually it ends by itself before the second look.
			s.log.Info("this relay's lost connection still owns the slot: terminating it",
				"event", event.OwnStreamTerminated, "slot", s.names.Slot, "owner", owner.String())
			if err := terminate(ctx, stream, owner); err != nil {
				return v, err
			}
		default:
			s.owner.waitsFor.Store(&owner)
			if !owner.Is(s.owner.last) {
				s.owner.wasOwn, standby = false, true
				s.announce(event.StandbyStarted, "standby: another relay owns the slot", "owner", owner.String())
			}
			s.trouble.Over(event.StreamUp, "stream is up again: this relay is a standby")
		}
		if err := sleep(ctx, pause); err != nil {
			return v, err
		}
	}
}

// othersTurn reports whether to leave a free slot to another relay, because only that one can publish.
func (s *streamer) othersTurn(ctx context.Context, stream *replication.Stream) (bool, error) {
	if s.phase() == publish.Ready {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	return replication.ReadyStandby(ctx, stream.Conn(), s.names.Slot)
}

// readSlot reads the slot, and tells the other relays whether this one can publish.
func (s *streamer) readSlot(ctx context.Context, stream *replication.Stream, told *bool) (slot.Slot, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if ready := s.phase() == publish.Ready; ready != *told {
		if err := stream.SetReady(ctx, ready); err != nil {
			return slot.Slot{}, err
		}
		*told = ready
	}
	seen, err := stream.Slot(ctx)
	if seen.Exists() {
		s.names.Found = seen.Options
	}
	return seen, err
}

func terminate(ctx context.Context, stream *replication.Stream, owner slot.Process) error {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	return owner.Terminate(ctx, stream.Conn())
}

// watched is the owner of the slot as this relay observes it. All times are on this relay's clock, because the owner's
// clock may differ.
type watched struct {
	pid   uint32
	heard string
	since time.Time
	// looked is when this relay last looked.
	looked time.Time
}

// silentFor returns how long the owner has been silent, or 0 if that is unknown. A server process that decodes does not
// listen to its relay. A server that was paused may have heard nobody.
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

// slotNow reads the slot on a connection of the pool; instead of a free slot, another one from which a relay streams
// the table.
func slotNow(ctx context.Context, db *store.Store, names provision.Names) (seen slot.Slot, err error) {
	var all []slot.Slot
	err = db.Conn(ctx, func(conn *pgx.Conn) error {
		all, err = slot.List(ctx, conn.PgConn())
		return err
	})
	if i := slices.IndexFunc(all, func(s slot.Slot) bool { return s.Name == names.Slot }); i >= 0 {
		seen = all[i]
	}
	if rivals := provision.Rivals(all, names); seen.Owner().PID == 0 && len(rivals) > 0 {
		seen = rivals[0]
	}
	return seen, err
}

// unused returns how long the slot has certainly had no owner. Before Postgres 17, this is known only if the slot does
// not exist.
func unused(seen slot.Slot) time.Duration {
	switch {
	case !seen.Exists():
		return core.RestFor
	case seen.InactiveSeconds != nil:
		return time.Duration(*seen.InactiveSeconds * float64(time.Second))
	}
	return 0
}

// checkSplit fails if relays stream the same rows from other slots.
func checkSplit(ctx context.Context, db *store.Store, names provision.Names) error {
	return db.Conn(ctx, func(conn *pgx.Conn) error { return provision.CheckSplit(ctx, conn.PgConn(), names) })
}

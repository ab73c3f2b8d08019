package relay

import (
	"context"
	"errors"
	"time"

	"github.com/cdc-relay/cdc-relay/replication"
)

// courtesy is how long a slot that is free, or gone, is left to the relay that held it: where only
// its connection broke it is back sooner, and it alone knows what is in flight, which another
// would publish again.
const courtesy = 300 * time.Millisecond

// awaitSlot waits while another relay holds the slot. It ends the hold of one that was not heard
// of for long, and that of this relay's own last stream, where the server has not noticed that its
// connection was lost.
func (s *streamer) awaitSlot(ctx context.Context, stream *replication.Stream) error {
	defer s.waited.Store(false)
	var other watched
	for {
		s.alive.beat()
		askCtx, cancel := context.WithTimeout(ctx, openTimeout)
		holder, err := stream.Holder(askCtx)
		cancel()
		switch free := err == nil && holder.PID == ""; {
		case s.courteous && (free || errors.Is(err, replication.ErrSlotGone)):
			s.courteous = false
			if err := sleep(ctx, courtesy); err != nil {
				return err
			}
			continue
		case err != nil || free:
			return err
		case other.silentFor(holder, time.Now()) > silence:
			s.log.Warn("the relay that holds the slot is silent: it was stopped, or its host is out of reach; its hold is ended",
				"slot", s.names.Slot, "pid", holder.PID)
			if err := s.endHolder(ctx, stream, holder); err != nil {
				return err
			}
			other, s.courteous = watched{}, false
		case holder.Is(s.last):
			if !s.waited.Load() {
				break // mostly it ends by itself, before it is asked for again
			}
			s.log.Info("the server has not noticed that this relay's last stream is over; its hold of the slot is ended",
				"slot", s.names.Slot, "pid", holder.PID)
			if err := s.endHolder(ctx, stream, holder); err != nil {
				return err
			}
		default:
			s.courteous = true
			s.announce("standing by: another relay holds the slot")
		}
		s.trouble.over("connected to Postgres again")
		s.waited.Store(true)
		if err := sleep(ctx, askSlot); err != nil {
			return err
		}
	}
}

func (s *streamer) endHolder(ctx context.Context, stream *replication.Stream, holder replication.Holder) error {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	return stream.EndHolder(ctx, holder)
}

// watched is the holder of the slot as this relay has seen it change. The times are
// this relay's: the holder's clock may differ.
type watched struct {
	pid, heard string
	since      time.Time
	// looked is when it was looked at last.
	looked time.Time
}

// silentFor is how long the holder was not heard of, as far as that can be told: a
// server process that decodes has not listened to it, and a server that has not answered
// for long may have heard nobody.
func (w *watched) silentFor(h replication.Holder, now time.Time) time.Duration {
	late := now.Sub(w.looked) > silence/2
	if w.looked = now; late || h.PID != w.pid || h.Heard != w.heard || h.Heard == "" {
		w.pid, w.heard, w.since = h.PID, h.Heard, now
	}
	if !h.Waits {
		return 0
	}
	return now.Sub(w.since)
}

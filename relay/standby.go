package relay

import (
	"context"
	"time"

	"github.com/cdc-relay/cdc-relay/replication"
)

// awaitSlot waits while another relay holds the slot, and ends the hold of one that was
// not heard of for long.
func (s *streamer) awaitSlot(ctx context.Context, stream *replication.Stream) error {
	defer s.waited.Store(false)
	var other watched
	for {
		s.alive.beat()
		askCtx, cancel := context.WithTimeout(ctx, openTimeout)
		holder, err := stream.Holder(askCtx)
		if err == nil && other.silentFor(holder, time.Now()) > silence {
			s.log.Warn("the relay that holds the slot is silent: it was stopped, or its host is out of reach; its hold is ended",
				"slot", s.names.Slot, "pid", holder.PID)
			err = stream.EndHolder(askCtx, holder)
			other = watched{}
		}
		cancel()
		if err != nil || holder.PID == "" {
			return err
		}
		s.trouble.over("connected to Postgres again")
		s.waited.Store(true)
		s.announce("standing by: another relay holds the slot")
		if err := sleep(ctx, askSlot); err != nil {
			return err
		}
	}
}

// watched is the holder of the slot as this relay has seen it change. The times are
// this relay's: the holder's clock may differ.
type watched struct {
	pid, heard string
	since      time.Time
}

// silentFor is how long the holder was not heard of, as far as that can be told: a
// server process that decodes has not listened to it.
func (w *watched) silentFor(h replication.Holder, now time.Time) time.Duration {
	if h.PID != w.pid || h.Heard != w.heard || h.Heard == "" {
		*w = watched{pid: h.PID, heard: h.Heard, since: now}
	}
	if !h.Waits {
		return 0
	}
	return now.Sub(w.since)
}

package fallback

import (
	"context"
	"math"
	"time"
)

// Owner describes who owns the slot.
type Owner struct {
	// PID is the server process, 0: nobody. Relay: this process streams to a relay of the same table.
	PID   uint32
	Relay bool
	// Unused is how long the slot has had no owner, according to the server.
	Unused time.Duration
}

// slotSeen is what a relay without the slot knows of it. Only the goroutine of Once uses it.
type slotSeen struct {
	// freeSince is since when no relay has owned the slot; zero: one owns it. other is the process of somebody else
	// that owns the slot, or 0.
	freeSince time.Time
	other     uint32
	// relayed: a relay owned the slot at the last check.
	relayed bool
}

// CheckSlot asks who owns the slot. Only the goroutine of Once may call it.
func (s *Sweeper) CheckSlot(ctx context.Context) error {
	owner, err := s.SlotOwner(ctx)
	if err == nil && s.Polling && s.slot.relayed && !owner.Relay {
		err = s.markAll(ctx)
	}
	switch {
	case err != nil || owner.Relay:
		s.slot.freeSince = time.Time{}
	case s.slot.freeSince.IsZero() || owner.PID != s.slot.other: // a relay may have owned it in between
		s.slot.freeSince = s.Core.Clock()
		if s.Polling && !s.slot.relayed {
			s.slot.freeSince = s.slot.freeSince.Add(-owner.Unused)
		}
	}
	s.slot.other = owner.PID
	s.slot.relayed = owner.Relay || err != nil && s.slot.relayed
	return err
}

// markAll marks all existing rows: the relay that owned the slot may have published them.
func (s *Sweeper) markAll(ctx context.Context) error {
	last, ok, err := s.Table.LastID(ctx)
	if !ok {
		last = math.MaxInt64
	}
	if err == nil {
		s.Core.SetBoundary(last)
	}
	return err
}

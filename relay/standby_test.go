package relay

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/replication"
	"github.com/cdc-relay/cdc-relay/test/await"
)

// open connects to the slot, which it creates if it is missing.
func (i *instance) open() *replication.Stream {
	i.t.Helper()
	s := &streamer{address: pgdial.AddressOf(i.config.DatabaseURL, ""), names: i.config.Names()}
	stream, err := s.connect(i.t.Context())
	if err != nil {
		i.t.Fatal(err)
	}
	i.t.Cleanup(stream.Close)
	if _, err := provision.Setup(i.t.Context(), stream.Conn(), s.names, await.Hang()); err != nil {
		i.t.Fatal(err)
	}
	return stream
}

// A lost connection could own the slot until wal_sender_timeout, and the relay would be its own standby.
func TestALostStreamLosesItsSlotSoon(t *testing.T) {
	i := newInstance(t)
	log := slog.New(slog.DiscardHandler)
	lost := i.open()
	if _, err := lost.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	await := func(last slot.Process) error {
		ctx, cancel := context.WithTimeout(t.Context(), silence/2) // before a silent owner is terminated
		defer cancel()
		ready := func() publish.Phase { return publish.Ready }
		s := &streamer{phase: ready, names: i.config.Names(), log: log, alive: newHeartbeat(), trouble: newOutageLog(log, pgdial.Address{}), owner: slotOwnership{last: last}}
		_, err := s.awaitSlot(ctx, i.open())
		return err
	}
	another := lost.Process()
	another.Since = another.Since.Add(-time.Second)
	if err := await(another); err == nil {
		t.Error("another process with the same id was terminated")
	}
	if err := await(lost.Process()); err != nil {
		t.Errorf("its own last stream still owns the slot: %v", err)
	}
}

// An owner counts as silent only by what this relay has observed, not because the server was paused.
func TestAnOwnerIsSilentOnlyWhileTheServerAnswers(t *testing.T) {
	owner := slot.Process{PID: 7, Heard: "then", Listens: true}
	began := time.Now()
	silentAfter := func(looks ...time.Duration) (silent bool) {
		var w watched
		for _, at := range looks {
			silent = w.silentFor(owner, began.Add(at)) > silence
		}
		return silent
	}
	every := func(step time.Duration) (looks []time.Duration) {
		for at := time.Duration(0); at <= silence+step; at += step {
			looks = append(looks, at)
		}
		return looks
	}
	if !silentAfter(every(askSlot)...) || !silentAfter(every(time.Second)...) {
		t.Error("an owner that never reports does not count as silent")
	}
	if silentAfter(0, askSlot, 2*silence) || silentAfter(0, askSlot, 2*silence, 2*silence+askSlot) {
		t.Error("the server was paused, and the owner counts as silent")
	}
}

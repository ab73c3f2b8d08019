package relay

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/replication"
)

// TestTheHoldOfAStreamThatIsOverIsEndedSoon: where the network lost the connection, the server
// would keep the slot for it until wal_sender_timeout, and the relay stand by behind itself.
func TestTheHoldOfAStreamThatIsOverIsEndedSoon(t *testing.T) {
	i := newInstance(t)
	log := slog.New(slog.DiscardHandler)
	open := func() *replication.Stream {
		stream, _, err := replication.Open(t.Context(), i.config.DatabaseURL, i.config.Names(), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(stream.Close)
		return stream
	}
	lost := open()
	if _, err := lost.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	await := func(last replication.Process) error {
		ctx, cancel := context.WithTimeout(t.Context(), silence/2) // sooner than a silent one is ended
		defer cancel()
		s := &streamer{names: i.config.Names(), log: log, alive: newHeartbeat(), trouble: newEpisode(log), last: last}
		return s.awaitSlot(ctx, open())
	}
	another := lost.Process()
	another.Began = "2000-01-01 00:00:00+00"
	if err := await(another); err == nil {
		t.Error("the hold of a process that has the same id was ended")
	}
	if err := await(lost.Process()); err != nil {
		t.Errorf("its own last hold is still there: %v", err)
	}
}

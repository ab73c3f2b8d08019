package relay

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/publish/stdout"
	"github.com/cdc-relay/cdc-relay/test/await"
)

// unconnected returns a relay with a ready publisher and a window of two messages.
func unconnected(t *testing.T) *Relay {
	t.Helper()
	config := DefaultConfig()
	config.DatabaseURL, config.Mode, config.MaxInFlight = "postgres://localhost/none", ModePoll, 2
	r, err := New(config, stdout.New(stdout.Config{}), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	must(t, err)
	t.Cleanup(r.Close)
	r.StateChanged(publish.State{Phase: publish.Ready})
	return r
}

// A restart of the process brings no server back.
func TestARelayThatCannotReachPostgresIsLive(t *testing.T) {
	r := unconnected(t)
	r.leader.alive.beatFor(-2 * stuckAfter)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.leader.run(ctx) }()
	await.Until(t, "the leader tries to connect", func() bool { return r.leader.alive.age() < stuckAfter })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A busy relay has a full window too, but messages leave it.
func TestARelayIsNotReadyIfUndeletedRowsFillTheWindow(t *testing.T) {
	r := unconnected(t)
	r.phase.Store(phaseRunning)
	now := time.Now()
	r.core.Clock = func() time.Time { return now }
	r.core.BeginTerm(core.Lead{})
	r.core.StreamLive(true)
	later := func(d time.Duration) {
		now = now.Add(d)
		r.core.Owned(now)
	}
	stream := func(id int64) *outbox.Message {
		m := &outbox.Message{Row: outbox.Row{ID: id}, XID: 1}
		r.core.Streamed(m, 1, false)
		return m
	}
	confirm := func(m *outbox.Message) outbox.Settlement {
		out, _ := r.core.Resolved(outbox.Result{Message: m, Outcome: outbox.Confirmed})
		return out.Settle[0]
	}
	is := func(want bool, when string) {
		t.Helper()
		if h := r.Health(); h.Ready != want {
			t.Errorf("ready %v %s: %+v", h.Ready, when, h.Parts)
		}
	}
	later(0)
	waits, busy := confirm(stream(1)), confirm(stream(2))
	r.settler.waits.Store(1)
	stream(3)
	later(slowAfter / 2)
	is(true, "with a window that has just become full")
	for id := range int64(5) {
		later(slowAfter / 2)
		r.core.Settled([]outbox.Settlement{busy})
		busy = confirm(stream(10 + id))
		stream(20)
	}
	is(true, "while messages leave")
	later(2 * slowAfter)
	is(false, "with no message that leaves")
	r.core.Settled([]outbox.Settlement{waits})
	is(true, "with room")
}

// The sweeper has ended then, and sends no heartbeat.
func TestARelayIsHealthyDuringALongShutdown(t *testing.T) {
	r := unconnected(t)
	r.core.BeginTerm(core.Lead{})
	r.sweeping.last.Store(time.Now().Add(-2 * stuckAfter).UnixNano())
	r.phase.Store(phaseRunning)
	if h := r.Health(); h.Live || h.Ready {
		t.Errorf("healthy with a stuck sweep: %+v", h)
	}
	r.phase.Store(phaseStopping)
	if h := r.Health(); !h.Live || !h.Ready {
		t.Errorf("unhealthy during a shutdown: %+v", h)
	}
}

package relay

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/publish/stdout"
)

// The sweeper has ended then, and sends no heartbeat.
func TestARelayIsHealthyDuringALongShutdown(t *testing.T) {
	config := DefaultConfig()
	config.DatabaseURL, config.Mode = "postgres://localhost/none", ModePoll
	r, err := New(config, stdout.New(stdout.Config{}), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.StateChanged(publish.State{Phase: publish.Ready})
	r.sweeper.alive.last.Store(time.Now().Add(-2 * stuckAfter).UnixNano())
	r.phase.Store(phaseRunning)
	if h := r.Health(); h.Live || h.Ready {
		t.Errorf("healthy with a stuck sweep: %+v", h)
	}
	r.phase.Store(phaseStopping)
	if h := r.Health(); !h.Live || !h.Ready {
		t.Errorf("unhealthy during a shutdown: %+v", h)
	}
}

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/relay"
	"github.com/cdc-relay/cdc-relay/store"
)

// TestExplainTellsWhenARowIsTakenInTruth: a --stale-timeout of minutes counts as five seconds.
func TestExplainTellsWhenARowIsTakenInTruth(t *testing.T) {
	for timeout, want := range map[time.Duration]string{5 * time.Minute: "within 5s or so", 2 * time.Second: "within 2s or so"} {
		s := surroundings{cfg: &config{relay: relay.DefaultConfig()}}
		s.cfg.relay.StaleTimeout = timeout
		if is := s.outlookOf(store.Waiting{State: store.Fresh}).text; !strings.Contains(is, want) {
			t.Errorf("--stale-timeout %s: %q, want %q", timeout, is, want)
		}
	}
}

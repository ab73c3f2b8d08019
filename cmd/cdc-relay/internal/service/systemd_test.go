package service

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/cdc-relay/cdc-relay/relay"
	"github.com/cdc-relay/cdc-relay/test/systemdtest"
)

type changingHealth struct {
	mu sync.Mutex
	h  relay.Health
}

func (c *changingHealth) Health() relay.Health {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.h
}

func (c *changingHealth) become(h relay.Health) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.h = h
}

func TestOnlyALiveRelayFeedsTheWatchdog(t *testing.T) {
	socket, said := systemdtest.Listen(t)
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", "60000")
	systemd, err := Supervised()
	if err != nil {
		t.Fatal(err)
	}
	health := &changingHealth{h: relay.Health{Live: true, Ready: true, Role: "streaming"}}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		systemd.Keep(ctx, ctx, health, slog.New(slog.DiscardHandler))
	}()
	defer func() { cancel(); <-ended }()
	systemdtest.Await(t, said, "WATCHDOG=1")
	stuck := relay.Part{Name: "settle", Detail: "has not moved for 1m0s"}
	health.become(relay.Health{Role: "streaming", Parts: []relay.Part{stuck}})
	for range 5 {
		message := systemdtest.Await(t, said, "STATUS=not ready (streaming); settle: has not moved")
		if strings.Contains(message, "WATCHDOG=1") {
			t.Fatalf("a relay that is not live has fed the watchdog: %s", message)
		}
	}
	health.become(relay.Health{Live: true, Role: "streaming", Parts: []relay.Part{stuck}})
	systemdtest.Await(t, said, "WATCHDOG=1")
}

package service

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/relay"
	"github.com/cdc-relay/cdc-relay/test/await"
)

// notifications is systemd's end of the socket.
func notifications(t *testing.T) (socket string, said <-chan string) {
	t.Helper()
	folder, err := os.MkdirTemp("", "notify") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	socket = filepath.Join(folder, "s")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	lines, done := make(chan string, 10_000), make(chan struct{})
	go func() {
		defer close(done)
		buffer := make([]byte, 1<<16)
		for {
			n, err := conn.Read(buffer)
			if err != nil {
				return
			}
			lines <- string(buffer[:n])
		}
	}()
	t.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
	return socket, lines
}

func awaitNotification(t *testing.T, said <-chan string, want string) string {
	t.Helper()
	deadline := time.After(await.Hang())
	for {
		select {
		case message := <-said:
			for line := range strings.Lines(message) {
				if strings.HasPrefix(line, want) {
					return message
				}
			}
		case <-deadline:
			t.Fatalf("systemd did not receive %s", want)
		}
	}
}

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
	socket, said := notifications(t)
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
	awaitNotification(t, said, "WATCHDOG=1")
	stuck := relay.Part{Name: "settle", Detail: "has not moved for 1m0s"}
	health.become(relay.Health{Role: "streaming", Parts: []relay.Part{stuck}})
	for range 5 {
		message := awaitNotification(t, said, "STATUS=not ready (streaming); settle: has not moved")
		if strings.Contains(message, "WATCHDOG=1") {
			t.Fatalf("a relay that is not live has fed the watchdog: %s", message)
		}
	}
	health.become(relay.Health{Live: true, Role: "streaming", Parts: []relay.Part{stuck}})
	awaitNotification(t, said, "WATCHDOG=1")
}

package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
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

func TestSystemdGetsReadinessStatusAndStopping(t *testing.T) {
	socket, said := notifications(t)
	env := environment{
		"CDC_RELAY_DATABASE_URL": services.Database(t), "CDC_RELAY_SLOT": services.Name(t), "CDC_RELAY_PUBLISHER": "stdout",
		"CDC_RELAY_HTTP_ADDR": "", "NOTIFY_SOCKET": socket, "WATCHDOG_USEC": "900000",
	}
	want(t, cdcRelay(t, env, "setup"), exitDone)
	c := start(t, env, "run")
	awaitNotification(t, said, "READY=1")
	awaitNotification(t, said, "WATCHDOG=1")
	awaitNotification(t, said, "STATUS=ready (streaming)")
	c.signal(t, syscall.SIGTERM)
	awaitNotification(t, said, "STOPPING=1")
	if code := c.exit(t); code != exitDone {
		t.Errorf("exit code %d", code)
	}
}

// A relay that waits for Postgres counts as started, and reports what it waits for.
func TestSystemdStatusNamesWhatAStartWaitsFor(t *testing.T) {
	t.Parallel()
	socket, said := notifications(t)
	start(t, environment{
		"CDC_RELAY_DATABASE_URL": someDatabase, "CDC_RELAY_PUBLISHER": "stdout", "CDC_RELAY_HTTP_ADDR": "", "NOTIFY_SOCKET": socket,
	}, "run")
	message := awaitNotification(t, said, "READY=1")
	if !strings.HasPrefix(message, "STATUS=not ready (starting); start: ") || !strings.Contains(message, "connection refused") ||
		strings.Contains(message, "WATCHDOG=1") || strings.Contains(message, "s3cr3t") {
		t.Errorf("got %s", message)
	}
}

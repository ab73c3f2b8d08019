// Package systemdtest is systemd's end of the socket to which a service writes its notifications.
package systemdtest

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/await"
)

// Listen returns a socket for NOTIFY_SOCKET, and what a service writes to it. The test closes it at its end.
func Listen(t *testing.T) (socket string, said <-chan string) {
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

// Await returns the first notification with a line that begins so. It fails the test if none comes in time.
func Await(t *testing.T, said <-chan string, want string) string {
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

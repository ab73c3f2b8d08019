package publish

import (
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// fullDisk takes a number of bytes, then fails until there is room again.
type fullDisk struct {
	mu   sync.Mutex
	room int
	got  strings.Builder
}

var errNoRoom = syscall.ENOSPC

func (d *fullDisk) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := min(len(p), d.room)
	d.room -= n
	d.got.Write(p[:n])
	if n < len(p) {
		return n, errNoRoom
	}
	return n, nil
}

func (d *fullDisk) give(room int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.room = room
}

// A torn line is Unknown, and does not damage the next one.
func TestStdoutTreatsAFailedWriteAsAnOutage(t *testing.T) {
	var k maker
	first := k.make("x", "k", `"first"`)
	second := k.make("x", "k", `"second"`)
	third := k.make("x", "k", `"third"`)
	disk := &fullDisk{room: 100} // less than one line
	r := start(t, NewStdout(StdoutConfig{Writer: disk}))
	r.awaitPhase(t, Ready)
	r.publish(first)
	allAre(t, r.awaitResults(t, first), outbox.Unknown)
	r.awaitPhase(t, Ready)
	r.publish(second)
	allAre(t, r.awaitResults(t, second), outbox.NotSent)
	r.awaitPhase(t, Ready)
	disk.give(1 << 20)
	r.publish(third)
	allAre(t, r.awaitResults(t, third), outbox.Confirmed)
	r.stop(t)
	lines := strings.Split(disk.got.String(), "\n")
	if len(lines) < 3 || !strings.HasPrefix(lines[len(lines)-2], `{"id":3,`) || !strings.HasSuffix(lines[len(lines)-2], "}") {
		t.Errorf("got %q", lines)
	}
}

// No retry can help.
func TestStdoutEndsIfTheReaderIsGone(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = read.Close()
	r := start(t, NewStdout(StdoutConfig{Writer: write}))
	t.Cleanup(func() { _ = write.Close() })
	r.awaitPhase(t, Ready)
	m := (&maker{}).make("x", "k", `{}`)
	r.publish(m)
	allAre(t, r.awaitResults(t, m), outbox.NotSent)
	<-r.done
	if !errors.Is(r.err, syscall.EPIPE) {
		t.Errorf("Run returned %v", r.err)
	}
}

func TestStdoutStopsWhileAWriteHangs(t *testing.T) {
	read, write := io.Pipe()
	r := start(t, NewStdout(StdoutConfig{Writer: write}))
	t.Cleanup(func() { _ = read.Close() })
	r.awaitPhase(t, Ready)
	m := (&maker{}).make("x", "k", `{}`)
	r.publish(m)
	one := make([]byte, 1)
	if _, err := read.Read(one); err != nil { // the write has begun
		t.Fatal(err)
	}
	r.stop(t)
	allAre(t, r.awaitResults(t, m), outbox.Unknown)
}

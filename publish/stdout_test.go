package publish

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
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
	var log syncBuffer
	r := start(t, NewStdout(StdoutConfig{Writer: disk, Logger: slog.New(slog.NewTextHandler(&log, nil))}))
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
	if got := log.lines(); len(got) != 2 || !strings.Contains(got[0], errNoRoom.Error()) || !strings.Contains(got[1], string(event.OutputRecovered)) {
		t.Errorf("logged: %v", got)
	}
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

// A slow reader is no outage.
func TestStdoutWaitsForItsReaderAndSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read, write := io.Pipe()
		defer read.Close()
		var log syncBuffer
		p := NewStdout(StdoutConfig{Writer: write, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		r := newRecorder()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- p.Run(ctx, r) }()
		synctest.Wait()
		m := (&maker{}).make("x", "k", `{}`)
		p.Publish(m)
		time.Sleep(time.Hour)
		if got := strings.Join(log.lines(), "\n"); strings.Count(got, "\n") > 0 || !strings.Contains(got, "standard output takes nothing") {
			t.Errorf("logged: %s", got)
		}
		go func() { _, _ = io.Copy(io.Discard, read) }()
		synctest.Wait()
		if got := r.results[m]; len(got) != 1 || got[0].Outcome != outbox.Confirmed || len(r.states) != 4 {
			t.Errorf("results %v, states %v", got, r.states)
		}
		for i, s := range r.states[1:] { // ready, waiting for the reader, ready
			if s.Phase != Ready || (s.Detail != "") != (i == 1) {
				t.Errorf("states %v", r.states)
			}
		}
		if !strings.Contains(log.lines()[1], string(event.OutputRecovered)) {
			t.Errorf("logged: %v", log.lines())
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
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

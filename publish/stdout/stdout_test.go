package stdout

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
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
	var k publishtest.Maker
	first := k.Make("x", "k", `"first"`)
	second := k.Make("x", "k", `"second"`)
	third := k.Make("x", "k", `"third"`)
	disk := &fullDisk{room: 100} // less than one line
	var log publishtest.Buffer
	r := publishtest.Start(t, New(Config{Writer: disk, Logger: slog.New(slog.NewTextHandler(&log, nil))}))
	r.AwaitPhase(t, publish.Ready)
	r.PublishAll(first)
	publishtest.AllAre(t, r.AwaitResults(t, first), outbox.Unknown)
	r.AwaitPhase(t, publish.Ready)
	r.PublishAll(second)
	publishtest.AllAre(t, r.AwaitResults(t, second), outbox.NotSent)
	r.AwaitPhase(t, publish.Ready)
	disk.give(1 << 20)
	r.PublishAll(third)
	publishtest.AllAre(t, r.AwaitResults(t, third), outbox.Confirmed)
	r.Stop(t)
	if got := log.Lines(); len(got) != 2 || !strings.Contains(got[0], errNoRoom.Error()) || !strings.Contains(got[1], string(event.OutputRecovered)) {
		t.Errorf("logged: %v", got)
	}
	lines := strings.Split(disk.got.String(), "\n")
	if len(lines) < 3 || !strings.HasPrefix(lines[len(lines)-2], `{"id":3,`) || !strings.HasSuffix(lines[len(lines)-2], "}") {
		t.Errorf("got %q", lines)
	}
}

// A slow reader is no outage.
func TestStdoutWaitsForItsReaderAndSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read, write := io.Pipe()
		defer read.Close()
		var log publishtest.Buffer
		p := New(Config{Writer: write, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		r := publishtest.NewRecorder()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- p.Run(ctx, r) }()
		synctest.Wait()
		m := (&publishtest.Maker{}).Make("x", "k", `{}`)
		p.Publish(m)
		time.Sleep(time.Hour)
		if got := strings.Join(log.Lines(), "\n"); strings.Count(got, "\n") > 0 || !strings.Contains(got, "standard output takes nothing") {
			t.Errorf("logged: %s", got)
		}
		go func() { _, _ = io.Copy(io.Discard, read) }()
		synctest.Wait()
		if got := r.Results[m]; len(got) != 1 || got[0].Outcome != outbox.Confirmed || len(r.States) != 4 {
			t.Errorf("results %v, states %v", got, r.States)
		}
		for i, s := range r.States[1:] { // ready, waiting for the reader, ready
			if s.Phase != publish.Ready || (s.Detail != "") != (i == 1) {
				t.Errorf("states %v", r.States)
			}
		}
		if !strings.Contains(log.Lines()[1], string(event.OutputRecovered)) {
			t.Errorf("logged: %v", log.Lines())
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

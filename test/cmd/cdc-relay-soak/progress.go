package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/test/soak/history"
	"github.com/cdc-relay/cdc-relay/test/soak/load"
)

const (
	// lineEvery is the interval of the lines, waitingTimeout the limit for a count of the waiting rows.
	lineEvery, waitingTimeout = 5 * time.Second, 5 * time.Second
	// fresh is how long an error is shown.
	fresh = 10 * time.Second
)

// screen shows the news of a run, a line for each. It is safe for concurrent use.
type screen struct {
	mu  sync.Mutex
	out io.Writer
}

func (s *screen) note(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintln(s.out, strings.TrimRight(text, "\n"))
}

// progress shows the progress of a run.
type progress struct {
	soak   *soak
	began  time.Time
	cancel context.CancelFunc
	done   sync.WaitGroup

	before   history.Counts // of the last line
	beforeAt time.Time

	mu  sync.Mutex
	now map[int]shownFault // the faults that are being made
}

type shownFault struct {
	name  string
	began time.Time
}

func startProgress(s *soak) *progress {
	ctx, cancel := context.WithCancel(context.Background())
	p := &progress{soak: s, began: time.Now(), beforeAt: time.Now(), cancel: cancel, now: make(map[int]shownFault)}
	p.done.Go(func() {
		for load.Pause(ctx, lineEvery) {
			p.soak.screen.note(p.line(ctx))
		}
	})
	return p
}

// stop ends the lines. It can be called again.
func (p *progress) stop() {
	p.cancel()
	p.done.Wait()
}

func (p *progress) faultBegan(id int, f planned) {
	p.mu.Lock()
	p.now[id] = shownFault{name: f.fault.Name, began: time.Now()}
	p.mu.Unlock()
	p.soak.screen.note(fmt.Sprintf("fault %d: %s for %s", id, f.fault.Name, f.hold))
}

func (p *progress) faultHealed(id int, detail string, err error) {
	p.mu.Lock()
	f := p.now[id]
	delete(p.now, id)
	p.mu.Unlock()
	text := fmt.Sprintf("fault %d: %s, fixed after %s", id, f.name, short(time.Since(f.began)))
	if detail != "" {
		text += " (" + detail + ")"
	}
	if err != nil {
		text += "; it failed to run: " + err.Error()
	}
	p.soak.screen.note(text)
}

// line describes the run since the last line.
func (p *progress) line(ctx context.Context) string {
	c, now := p.soak.recorder.Counts(), time.Now()
	seconds := now.Sub(p.beforeAt).Seconds()
	in := float64(c.Acknowledged-p.before.Acknowledged) / seconds
	out := float64(c.Delivered-p.before.Delivered) / seconds
	p.before, p.beforeAt = c, now
	text := fmt.Sprintf("%s of %s: in %.0f/s, out %.0f/s, %s, "+
		"%d acknowledged, %d delivered, %d damaged",
		time.Since(p.began).Round(time.Second), p.soak.opts.duration, in, out, p.waits(ctx),
		c.Acknowledged, c.Delivered, c.Damaged)
	p.mu.Lock()
	for _, f := range p.now {
		text += ", " + f.name
	}
	p.mu.Unlock()
	return text + p.errors()
}

func (p *progress) waits(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, waitingTimeout)
	defer cancel()
	rows, err := p.soak.state.Waiting(ctx)
	if err != nil {
		return "rows waiting: the database does not answer"
	}
	return fmt.Sprintf("%d rows wait", rows)
}

func (p *progress) errors() (text string) {
	for _, who := range []struct {
		name string
		seen load.Errors
	}{{"writers", p.soak.writers.Trouble.Seen()}, {"consumers", p.soak.consumers.Trouble.Seen()}} {
		if who.seen.Newest != nil && time.Since(who.seen.At) < fresh {
			newest := strings.Join(strings.Fields(who.seen.Newest.Error()), " ")
			text += fmt.Sprintf("\n  %s: %d errors, the last: %s", who.name, who.seen.Count, newest)
		}
	}
	return text
}

// short rounds to a readable precision.
func short(d time.Duration) string {
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/test/soak/history"
	"github.com/cdc-relay/cdc-relay/test/soak/load"
)

const (
	// blockEvery is the interval of updates on a terminal, lineEvery elsewhere.
	blockEvery, lineEvery = 500 * time.Millisecond, 5 * time.Second
	// waitingEvery is how often the waiting rows are counted, waitingTimeout the limit for a count.
	waitingEvery, waitingTimeout = 2 * time.Second, 5 * time.Second
	// rateOver is the window of the rates.
	rateOver = 5 * time.Second
	// lastFaults is how many finished faults are shown.
	lastFaults = 5
	// fresh is how long an error is shown.
	fresh = 10 * time.Second
)

// progress shows the progress of a run.
type progress struct {
	soak    *soak
	began   time.Time
	cancel  context.CancelFunc
	done    sync.WaitGroup
	mu      sync.Mutex
	doing   string // empty while faults are made
	waiting int    // rows; -1: the database does not answer
	now     []*shownFault
	last    []*shownFault
	samples []sample // of the last few seconds
}

type shownFault struct {
	id       int
	name     string
	hold     time.Duration
	began    time.Time
	took     time.Duration
	detail   string
	err      error
	recovery time.Duration // 0: not yet
}

type sample struct {
	at     time.Time
	counts history.Counts
}

func startProgress(s *soak) *progress {
	ctx, cancel := context.WithCancel(context.Background())
	p := &progress{soak: s, began: time.Now(), cancel: cancel, waiting: -1}
	p.done.Go(func() { p.countWaiting(ctx) })
	p.done.Go(func() { p.display(ctx) })
	return p
}

// stop ends the display. It can be called again.
func (p *progress) stop() {
	p.cancel()
	p.done.Wait()
}

func (p *progress) display(ctx context.Context) {
	every := lineEvery
	if p.soak.screen.terminal {
		every = blockEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			p.soak.screen.show(nil)
			return
		}
		if p.soak.screen.terminal {
			p.soak.screen.show(p.block())
		} else {
			p.soak.screen.note(p.line())
		}
	}
}

// countWaiting runs apart from the display, which continues while the database does not answer.
func (p *progress) countWaiting(ctx context.Context) {
	for calm(ctx, waitingEvery) {
		query, cancel := context.WithTimeout(ctx, waitingTimeout)
		rows, err := p.soak.state.Waiting(query)
		cancel()
		if err != nil {
			rows = -1
		}
		p.set(func() { p.waiting = rows })
	}
}

func (p *progress) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// phase says what happens after the faults.
func (p *progress) phase(text string) {
	p.set(func() { p.doing = text })
	if !p.soak.screen.terminal {
		p.soak.screen.note(text)
	}
}

func (p *progress) drained(d load.Drain) { p.set(func() { p.waiting = d.Waiting }) }

func (p *progress) faultBegan(id int, f planned) {
	p.set(func() {
		p.now = append(p.now, &shownFault{id: id, name: f.fault.Name, hold: f.hold, began: time.Now()})
	})
	if !p.soak.screen.terminal {
		p.soak.screen.note(fmt.Sprintf("fault %d: %s for %s", id, f.fault.Name, f.hold))
	}
}

func (p *progress) faultHealed(id int, detail string, err error) {
	p.mu.Lock()
	var over *shownFault
	var still []*shownFault
	for _, f := range p.now {
		if f.id == id {
			over = f
			continue
		}
		still = append(still, f)
	}
	over.took, over.detail, over.err = time.Since(over.began), detail, err
	p.now, p.last = still, append(p.last, over)
	p.last = p.last[max(0, len(p.last)-lastFaults):]
	p.mu.Unlock()
	if err != nil || !p.soak.screen.terminal {
		p.soak.screen.note(over.String())
	}
}

// recovered reports the time from the end of the last fault to the first new arrival.
func (p *progress) recovered(took time.Duration) {
	p.set(func() {
		if n := len(p.last); n > 0 {
			p.last[n-1].recovery = max(took, time.Millisecond)
		}
	})
	if !p.soak.screen.terminal {
		p.soak.screen.note("recovered in " + short(took))
	}
}

// String describes a finished fault.
func (f *shownFault) String() string {
	text := fmt.Sprintf("fault %d: %s, fixed after %s", f.id, f.name, short(f.took))
	if f.detail != "" {
		text += " (" + f.detail + ")"
	}
	if f.recovery > 0 {
		text += ", recovered in " + short(f.recovery)
	}
	if f.err != nil {
		text += "; it failed to run: " + f.err.Error()
	}
	return text
}

// rates returns messages a second, committed and arrived.
func (p *progress) rates(counts history.Counts) (in, out float64) {
	now := time.Now()
	p.samples = append(p.samples, sample{now, counts})
	for len(p.samples) > 2 && now.Sub(p.samples[0].at) > rateOver {
		p.samples = p.samples[1:]
	}
	before := p.samples[0]
	seconds := max(now.Sub(before.at), 1).Seconds()
	in = float64(counts.Acknowledged-before.counts.Acknowledged) / seconds
	out = float64(counts.Delivered-before.counts.Delivered) / seconds
	return in, out
}

func (p *progress) line() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.soak.recorder.Counts()
	in, out := p.rates(c)
	text := fmt.Sprintf("%s: in %.0f/s, out %.0f/s, %s, "+
		"%d acknowledged, %d delivered, %d unknown, %d duplicates, %d damaged, %d faults",
		p.elapsed(), in, out, p.waits(), c.Acknowledged, c.Delivered, c.Unknown, c.Duplicates, c.Damaged, c.Faults)
	for _, f := range p.now {
		text += ", " + f.name
	}
	return text
}

func (p *progress) block() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.soak.recorder.Counts()
	in, out := p.rates(c)
	lines := []string{
		"",
		fmt.Sprintf("%s, seed %d%s", p.elapsed(), p.soak.opts.seed, prefixed("; ", p.doing)),
		fmt.Sprintf("  in  %6.0f/s   acknowledged %8d   unknown %6d   rolled back %6d",
			in, c.Acknowledged, c.Unknown, c.RolledBack),
		fmt.Sprintf("  out %6.0f/s   delivered    %8d   duplicates %6d   redelivered %6d   damaged %d",
			out, c.Delivered, c.Duplicates, c.Redelivered, c.Damaged),
		"  " + p.waits(),
	}
	for _, f := range p.now {
		lines = append(lines,
			fmt.Sprintf("  now  fault %d: %s, %s of %s", f.id, f.name, short(time.Since(f.began)), f.hold))
	}
	for i := len(p.last) - 1; i >= 0; i-- {
		lines = append(lines, "  past "+p.last[i].String())
	}
	return append(lines, p.errors()...)
}

func (p *progress) errors() (lines []string) {
	for _, who := range []struct {
		name string
		seen load.Errors
	}{{"writers", p.soak.writers.Trouble.Seen()}, {"consumers", p.soak.consumers.Trouble.Seen()}} {
		if who.seen.Newest != nil && time.Since(who.seen.At) < fresh {
			text := strings.Join(strings.Fields(who.seen.Newest.Error()), " ")
			lines = append(lines, fmt.Sprintf("  %s: %d errors, the last: %s", who.name, who.seen.Count, redact(text)))
		}
	}
	return lines
}

func (p *progress) elapsed() string {
	return fmt.Sprintf("%s of %s", time.Since(p.began).Round(time.Second), p.soak.opts.duration)
}

func (p *progress) waits() string {
	if p.waiting < 0 {
		return "rows waiting: the database does not answer"
	}
	return fmt.Sprintf("%d rows wait", p.waiting)
}

func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

// short rounds to a readable precision.
func short(d time.Duration) string {
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

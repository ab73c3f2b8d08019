package terminal

import (
	"bytes"
	"io"
	"sync"
	"time"
)

// buffered passes bytes on to a stream. Once it is detached, a Write never waits: a goroutine writes. Lines that do not
// fit into the buffer, or that the stream rejects, are dropped and counted.
type buffered struct {
	out io.Writer

	mu struct {
		sync.Mutex
		detached bool
		waiting  []byte
		// written is closed when the goroutine has written all that waited; nil: there is no goroutine.
		written chan struct{}
		dropped int64 // lines, in total
		untold  int64 // of these, since the last call of recovered
		// recovered is called with the number of dropped lines when lines are written again.
		recovered func(dropped int64)
	}
	torn bool // the stream took only a part of a line; only the goroutine uses it
}

// mostWaiting bounds the buffer in bytes.
const mostWaiting = 1 << 20

// Write implements io.Writer.
func (b *buffered) Write(p []byte) (int, error) {
	b.mu.Lock()
	if !b.mu.detached {
		b.mu.Unlock()
		return b.out.Write(p)
	}
	defer b.mu.Unlock()
	if len(b.mu.waiting) > 0 && len(b.mu.waiting)+len(p) > mostWaiting {
		b.drop(p)
		return len(p), nil
	}
	b.mu.waiting = append(b.mu.waiting, p...)
	if b.mu.written == nil {
		b.mu.written = make(chan struct{})
		go b.write()
	}
	return len(p), nil
}

// drop counts lines. The caller holds the lock.
func (b *buffered) drop(lines []byte) {
	n := max(int64(bytes.Count(lines, []byte{'\n'})), 1)
	b.mu.dropped += n
	b.mu.untold += n
}

// write writes until nothing waits. An error is no reason to try again: the next line is.
func (b *buffered) write() {
	var told func()
	for told == nil {
		b.mu.Lock()
		batch := b.mu.waiting
		b.mu.waiting = nil
		b.mu.Unlock()
		err := b.pass(batch)
		b.mu.Lock()
		if len(b.mu.waiting) == 0 {
			told = b.idle(err == nil)
		}
		b.mu.Unlock()
	}
	told()
}

// idle ends the goroutine, and returns what it still has to do. The caller holds the lock.
func (b *buffered) idle(works bool) func() {
	close(b.mu.written)
	b.mu.written = nil
	dropped, recovered := b.mu.untold, b.mu.recovered
	if !works || dropped == 0 || recovered == nil {
		return func() {}
	}
	b.mu.untold = 0
	return func() { recovered(dropped) }
}

func (b *buffered) pass(batch []byte) error {
	if b.torn {
		batch = append([]byte{'\n'}, batch...)
	}
	n, err := b.out.Write(batch)
	if n > 0 {
		b.torn = batch[n-1] != '\n'
	}
	if err != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.drop(batch[n:])
	}
	return err
}

// Unwrap returns the stream.
func (b *buffered) Unwrap() io.Writer { return b.out }

// DetachErr makes writes to Err return at once from now on: a log that nobody reads must not stop a service. recovered
// is called with the number of lines that were dropped, when lines are written again.
func (t Terminal) DetachErr(recovered func(dropped int64)) {
	if t.err != nil {
		t.err.mu.Lock()
		defer t.err.mu.Unlock()
		t.err.mu.detached, t.err.mu.recovered = true, recovered
	}
}

// DroppedLines is how many lines Err has dropped since DetachErr.
func (t Terminal) DroppedLines() int64 {
	if t.err == nil {
		return 0
	}
	t.err.mu.Lock()
	defer t.err.mu.Unlock()
	return t.err.mu.dropped
}

// FlushErr waits until Err has the last lines, but not longer than this for a reader that takes nothing.
func (t Terminal) FlushErr(atMost time.Duration) {
	if t.err == nil {
		return
	}
	t.err.mu.Lock()
	written := t.err.mu.written
	t.err.mu.Unlock()
	if written == nil {
		return
	}
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	select {
	case <-written:
	case <-timer.C:
	}
}

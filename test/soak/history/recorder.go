package history

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Recorder writes the history of a run while it happens. Its methods are safe for concurrent use. After a write error
// it writes nothing more, and Close returns the error. Reports after Close are not recorded, so stop everything that
// reports first.
type Recorder struct {
	began time.Time

	mu struct {
		sync.Mutex
		out    *bufio.Writer // keeps its first error
		closed bool

		recovery  chan time.Duration // of Recovery; nil: nobody waits
		ending    map[int64][]Message
		committed map[outbox.UUID]bool
		since     time.Duration // the first commit of a message that should arrive at once; 0: none yet
	}
}

// NewRecorder starts the clock. The caller closes the writer after Close.
func NewRecorder(w io.Writer) *Recorder {
	r := &Recorder{began: time.Now()}
	r.mu.out = bufio.NewWriterSize(w, 1<<20)
	return r
}

// Now returns the time on the run's monotonic clock, which began with the recorder.
func (r *Recorder) Now() time.Duration { return time.Since(r.began) }

// Ending reports a transaction right BEFORE its COMMIT or ROLLBACK is sent.
func (r *Recorder) Ending(t Transaction) { r.record(line{Ending: &t}) }

// Ended reports the outcome of a transaction, as known to its writer. Call it once for each.
func (r *Recorder) Ended(id int64, o Outcome) { r.record(line{Ended: &ended{ID: id, Outcome: o}}) }

// Delivered reports one arrival.
func (r *Recorder) Delivered(d Delivery) { r.record(line{Delivered: &d}) }

// FaultBegan reports a fault right before it begins.
func (r *Recorder) FaultBegan(f Fault) { r.record(line{Began: &f}) }

// FaultHealed reports that the servers answer again.
func (r *Recorder) FaultHealed(id int) { r.record(line{Healed: &id}) }

// Remaining reports a row of the outbox or the dead-letter table at the end.
func (r *Recorder) Remaining(row Row) { r.record(line{Remaining: &row}) }

// Kept reports that a transaction's business row is in the database at the end.
func (r *Recorder) Kept(transaction int64) { r.record(line{Kept: &transaction}) }

// Recovery returns a channel that receives how long nothing new arrived from now on: the time from the first commit
// until a message arrives that was committed from now on. It replaces the previous channel.
func (r *Recorder) Recovery() <-chan time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.recovery, r.mu.since = make(chan time.Duration, 1), 0
	r.mu.ending, r.mu.committed = make(map[int64][]Message), make(map[outbox.UUID]bool)
	return r.mu.recovery
}

// notice looks for the recovery. The caller holds the lock.
func (r *Recorder) notice(l line) {
	switch {
	case r.mu.recovery == nil:
	case l.Ending != nil:
		r.mu.ending[l.Ending.ID] = l.Ending.Messages
	case l.Ended != nil:
		for _, m := range r.mu.ending[l.Ended.ID] {
			if l.Ended.Outcome == Committed && m.prompt() && m.Key == "" {
				r.mu.committed[m.ID] = true
				r.mu.since = cmp.Or(r.mu.since, l.At)
			}
		}
		delete(r.mu.ending, l.Ended.ID)
	case l.Delivered != nil && r.mu.committed[l.Delivered.Message]:
		r.mu.recovery <- l.At - r.mu.since
		r.mu.recovery = nil
	}
}

// Close flushes, and returns the first write error.
func (r *Recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.closed = true
	if err := r.mu.out.Flush(); err != nil {
		return fmt.Errorf("write the history: %w", err)
	}
	return nil
}

// record writes one line. It takes the time under the lock, so that times increase from line to line.
func (r *Recorder) record(l line) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.closed {
		return
	}
	l.At = r.Now()
	r.notice(l)
	_ = json.NewEncoder(r.mu.out).Encode(l) // Close returns the error
}

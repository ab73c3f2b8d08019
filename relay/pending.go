package relay

import (
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/signal"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// pendingRows are the rows to settle. The core fills it from any goroutine, and the settler empties it.
type pendingRows struct {
	// batch is the most rows in a statement; from flushAt rows on, a statement does not wait for more.
	batch, flushAt int
	arrived        signal.Signal // signalled when rows becomes non-empty
	flushNow       signal.Signal // signalled when rows must be written now

	mu struct {
		sync.Mutex
		rows []outbox.Settlement
	}
}

// batchWait is how long a batch waits for more rows. A statement for each row would be most of the cost of a message.
// The delay shows after a crash, when more messages are published again, and to callers of outbox_await.
const batchWait = 50 * time.Millisecond

// promptWait replaces batchWait after a pause of promptAfter, because one more statement then costs little, and until
// promptAfter after a call of outbox_await was last seen.
const (
	promptWait  = 2 * time.Millisecond
	promptAfter = time.Second
)

func newPendingRows(maxInFlight, batch int) *pendingRows {
	return &pendingRows{
		batch:    batch,
		flushAt:  flushAtOf(maxInFlight, batch),
		arrived:  signal.New(),
		flushNow: signal.New(),
	}
}

// flushAtOf returns the batch size from which the settler does not wait. Rows to be deleted occupy the window, so a
// small window must not wait for a full batch.
func flushAtOf(maxInFlight, batch int) int { return min(batch, max(maxInFlight/4, 1)) }

// add queues rows for the next batch. Soon: write them at once.
func (p *pendingRows) add(rows []outbox.Settlement, soon bool) {
	if len(rows) == 0 {
		return
	}
	p.mu.Lock()
	before := len(p.mu.rows)
	p.mu.rows = append(p.mu.rows, rows...)
	pending := len(p.mu.rows)
	p.mu.Unlock()
	if before == 0 {
		p.arrived.Send()
	}
	if pending >= p.flushAt || soon {
		p.flushNow.Send()
	}
}

// take returns the next batch.
func (p *pendingRows) take() []outbox.Settlement {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(len(p.mu.rows), p.batch)
	batch := p.mu.rows[:n:n]
	if p.mu.rows = p.mu.rows[n:]; len(p.mu.rows) == 0 {
		p.mu.rows = nil
	} else {
		p.arrived.Send()
	}
	return batch
}

// full reports whether a batch need not wait for more rows.
func (p *pendingRows) full() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mu.rows) >= p.flushAt
}

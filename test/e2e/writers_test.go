package e2e

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/await"
)

// writers insert until they are stopped, across faults of the database. They remember what was certainly committed and
// what may have been.
type writers struct {
	w    *world
	stop context.CancelFunc
	done sync.WaitGroup

	mu        sync.Mutex
	committed map[string]bool
	uncertain map[string]bool // the connection was lost before the answer
	wanted    int             // committed rows that the test waits for
}

// write starts writers, which end with the test at the latest.
func (w *world) write(connections int) *writers {
	ctx, stop := context.WithCancel(w.t.Context())
	ws := &writers{w: w, stop: stop, committed: make(map[string]bool), uncertain: make(map[string]bool)}
	for range connections {
		ws.done.Go(func() {
			pace := time.NewTicker(20 * time.Millisecond) // slow enough that no backlog builds up
			defer pace.Stop()
			for ctx.Err() == nil {
				ws.insert(ctx, ws.batch())
				<-pace.C
			}
		})
	}
	w.t.Cleanup(ws.end)
	return ws
}

func (ws *writers) end() {
	ws.stop()
	ws.done.Wait()
}

// batch is how many rows to insert next: many only while the test waits for them, because the writers of all tests
// share the machine.
func (ws *writers) batch() int {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(ws.committed) < ws.wanted {
		return 20
	}
	return 2
}

func (ws *writers) insert(ctx context.Context, rows int) {
	ids := make([]string, rows)
	for i := range ids {
		ids[i] = newUUID()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_, err := ws.w.db.Exec(ctx, `INSERT INTO outbox (message_id, routing_key, payload)
		SELECT id, $1, '{}' FROM unnest($2::uuid[]) id`, ws.w.queue, ids)
	ws.mu.Lock()
	defer ws.mu.Unlock()
	into := ws.committed
	if err != nil {
		into = ws.uncertain
	}
	for _, id := range ids {
		into[id] = true
	}
}

// also adds rows that the test itself has committed.
func (ws *writers) also(ids []string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, id := range ids {
		ws.committed[id] = true
	}
}

func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

func (ws *writers) rows() int {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return len(ws.committed)
}

func (ws *writers) more(n int) {
	ws.w.t.Helper()
	ws.mu.Lock()
	target := len(ws.committed) + n
	ws.wanted = max(ws.wanted, target)
	ws.mu.Unlock()
	ws.w.eventually("rows are written", func() bool { return ws.rows() >= target })
}

// allArrive stops the writers and checks that committed rows arrive, nothing else does, nothing is dead-lettered, and
// there are at most this many duplicates, with the mark.
func (ws *writers) allArrive(arrived *ledger, most int) {
	ws.w.t.Helper()
	ws.end()
	ws.w.emptied()
	ws.w.eventually("all committed messages arrive", func() bool { return ws.missing(arrived) == 0 })
	for id := range arrived.counts() {
		if !ws.committed[id] && !ws.uncertain[id] {
			ws.w.t.Errorf("message %s arrived, which nobody inserted", id)
		}
	}
	atMost(ws.w.t, arrived, most)
	arrived.allMarked()
	ws.w.noDeadLetters()
}

func (ws *writers) missing(arrived *ledger) int {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	counts := arrived.counts()
	missing := 0
	for id := range ws.committed {
		if counts[id] == 0 {
			missing++
		}
	}
	return missing
}

func (r *relay) noRejections() {
	r.w.t.Helper()
	if n := r.rejections(); n > 0 {
		r.w.t.Errorf("%v rejections were counted", n)
	}
}

// within fails the test if something takes longer than promised; see promised.
func within(t *testing.T, what string, most time.Duration, f func()) {
	t.Helper()
	await.Within(t, what, promised(most), f)
}

// inTime does the same as within for a time that was measured already.
func inTime(t *testing.T, what string, took, most time.Duration) {
	t.Helper()
	await.Judge(t, what, took, promised(most))
}

package e2e

import (
	"maps"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/await"
)

// ledger records all arrivals in a queue, in order.
type ledger struct {
	t          *testing.T
	queue      string
	mu         sync.Mutex
	deliveries []amqp.Delivery
	perID      map[string]int
	at         map[string]time.Time // of the first arrival
	unmarked   []string             // duplicates without x-possible-duplicate
	arrived    int
	countOnly  bool // for numbers that would fill the memory
}

func newLedger(t *testing.T, queue string) *ledger {
	return &ledger{t: t, queue: queue, perID: make(map[string]int), at: make(map[string]time.Time)}
}

func (w *world) consume(queue string) *ledger {
	w.t.Helper()
	channel := w.channel()
	must(w.t, "limit the prefetch", channel.Qos(1000, 0, false))
	deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
	must(w.t, "consume", err)
	l := newLedger(w.t, queue)
	w.ledgers = append(w.ledgers, l)
	go func() {
		for d := range deliveries {
			l.add(d)
			_ = d.Ack(false)
		}
	}()
	return l
}

func consuming(t *testing.T) (*world, *ledger) {
	t.Helper()
	w := newWorld(t).setUp()
	return w, w.consume(w.queue)
}

func (l *ledger) add(d amqp.Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.arrived++
	l.perID[d.MessageId]++
	if !l.countOnly {
		l.deliveries = append(l.deliveries, d)
		if l.perID[d.MessageId] == 1 {
			l.at[d.MessageId] = time.Now()
		}
	}
	if l.perID[d.MessageId] > 1 && d.Headers["x-possible-duplicate"] != true {
		l.unmarked = append(l.unmarked, d.MessageId)
	}
}

func (l *ledger) onlyCount() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.countOnly = true
}

func (l *ledger) distinct() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.perID)
}

func (l *ledger) all() []amqp.Delivery {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]amqp.Delivery(nil), l.deliveries...)
}

func (l *ledger) duplicates() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.arrived - len(l.perID)
}

func (l *ledger) unmarkedDuplicates() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.unmarked)
}

func (l *ledger) allMarked() {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.unmarked); n != 0 {
		l.t.Errorf("%d duplicates are not marked", n)
	}
}

func (l *ledger) count(messageID string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.perID[messageID]
}

func (l *ledger) counts() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.perID)
}

func marked(l *ledger) (n int) {
	for _, d := range l.all() {
		if d.Headers["x-possible-duplicate"] == true {
			n++
		}
	}
	return n
}

// noMarks fails the test if a message has arrived with the mark of a possible duplicate, unless the machine is busy.
func (w *world) noMarks(l *ledger) {
	w.t.Helper()
	switch n := marked(l); {
	case n == 0:
	case await.Busy():
		w.t.Logf("%d of %d messages are marked: this machine is busy", n, len(l.all()))
	default:
		w.t.Errorf("%d of %d messages are marked", n, len(l.all()))
	}
}

func noDuplicates(t *testing.T, l *ledger) {
	t.Helper()
	atMost(t, l, 0)
}

// atMost fails the test if more messages have arrived twice. A relay that gets no processor time loses confirms: on a
// busy machine there may be more, with the mark.
func atMost(t *testing.T, l *ledger, most int) {
	t.Helper()
	switch n, unmarked := l.duplicates(), l.unmarkedDuplicates(); {
	case n <= most:
	case unmarked == 0 && await.Busy():
		t.Logf("%d messages arrived twice, all of them marked: this machine is busy", n)
	default:
		t.Errorf("%d messages arrived twice, %d of them without the mark; want at most %d", n, unmarked, most)
	}
}

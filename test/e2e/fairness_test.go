package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// pace keeps some hundred rows in flight for some time, and returns how many of them arrive in a second. They do not
// fill the window: how often a full window leaves rows in the table varies. The ordering key is the prefix of a hundred
// keys.
func (w *world) pace(arrived *ledger, healthy trouble) float64 {
	w.t.Helper()
	const batch, onTheirWay = 250, 500
	before, began, inserted := arrived.distinct(), time.Now(), 0
	for time.Since(began) < sized(400*time.Millisecond, 3*time.Second) {
		w.exec(`INSERT INTO outbox (exchange, routing_key, ordering_key, payload)
			SELECT `+healthy.exchange+`, $1, `+healthy.orderingKey+`, json_build_object('n', n, 'text', repeat('x', 200))
			FROM generate_series(1, $2) n`, w.queue, batch)
		inserted += batch
		w.eventually("they arrive", func() bool { return arrived.distinct()-before >= inserted-onTheirWay })
	}
	w.eventually("all arrive", func() bool { return arrived.distinct()-before >= inserted })
	return float64(inserted) / time.Since(began).Seconds()
}

// trouble are columns of rows, as SQL: $1 is the queue and n their number.
type trouble struct{ exchange, routingKey, orderingKey string }

// The throughput is measured without and with rows that always fail in turn. Each measurement is compared with those
// before and after it, because other work on the machine varies. With the default settings, each row is tried once an
// hour in the end.
func TestPermanentlyFailingRowsDoNotSlowOthers(t *testing.T) {
	services.Thorough(t, "measures the speed")
	healthy, ofKeys := trouble{exchange: `NULL`, orderingKey: `NULL`}, trouble{exchange: `NULL`, orderingKey: `'good ' || n % 100`}
	for name, rows := range map[string]struct{ failing, healthy trouble }{
		"rows that no queue takes":                {trouble{`NULL`, `$1 || '-nobody'`, `NULL`}, healthy},
		"rows to an exchange that does not exist": {trouble{`$1 || '-nowhere'`, `$1`, `NULL`}, healthy},
		"rows to an exchange whose queue rejects": {trouble{`$1 || '-rejects'`, `$1`, `NULL`}, trouble{`$1 || '-takes'`, `$1`, `NULL`}},
		"one key that fails, beside others":       {trouble{`NULL`, `$1 || '-nobody'`, `'bad'`}, ofKeys},
		"as many keys that fail, beside others":   {trouble{`NULL`, `$1 || '-nobody'`, `'bad ' || n`}, ofKeys},
	} {
		t.Run(name, func(t *testing.T) { slowdown(t, rows.failing, rows.healthy) })
	}
}

// slowdown checks what share of their pace healthy rows keep next to failing rows, each tried once in the period.
func slowdown(t *testing.T, failing, healthy trouble) {
	rows, period, least := sized(5000, 100_000), sized(3*time.Minute, time.Hour), sized(0.3, 0.9)
	w := newWorld(t).plainly().setUp()
	w.declareFair()
	arrived := w.consume(w.queue)
	arrived.onlyCount()
	r := w.run("--max-retries", "1000", "--backoff-time", period.String(), "--max-backoff", period.String())
	measure := func() float64 {
		// The cost of inserting and deleting the rows must not count, only their presence.
		if long() {
			w.slotFollows()
			w.exec(`CHECKPOINT`)
		}
		return w.pace(arrived, healthy)
	}
	measure() // warm up
	var shares []float64
	median := func() float64 { return slices.Sorted(slices.Values(shares))[len(shares)/2] }
	before := measure()
	// Other work on the machine changes the result in both directions; more rounds cancel it out.
	for n := 0; n < sized(3, 5) || n < 15 && median() < least; n++ {
		w.exec(fmt.Sprintf(`INSERT INTO outbox (exchange, routing_key, ordering_key, payload, attempts, last_error, available_at)
			SELECT %s, %s, %s, '{}', 1, 'unroutable: seen before', clock_timestamp() + random() * $3::interval
			FROM generate_series(1, $2) n`, failing.exchange, failing.routingKey, failing.orderingKey), w.queue, rows, period)
		first := r.rejections()
		w.eventually("some were tried", func() bool { return failing.orderingKey == `'bad'` || r.rejections() > first })
		with := measure()
		w.exec(`DELETE FROM outbox WHERE attempts > 0`)
		w.exec(`VACUUM outbox`)
		w.emptied()
		after := measure()
		t.Logf("before: %.0f a second; with: %.0f; after: %.0f", before, with, after)
		shares = append(shares, with/((before+after)/2))
		before = after
	}
	if median() < least {
		t.Errorf("beside them, others keep %.0f %% of their throughput, less than %.0f %%", 100*median(), 100*least)
	}
}

// declareFair declares an exchange with a queue that rejects, and one bound to the test's queue.
func (w *world) declareFair() {
	w.t.Helper()
	full := w.queue + "-full"
	w.declareQueue(full, amqp.Table{"x-max-length": int64(1), "x-overflow": "reject-publish"})
	channel := w.channel()
	for exchange, queue := range map[string]string{w.queue + "-rejects": full, w.queue + "-takes": w.queue} {
		w.bindExchange(exchange, "fanout", queue, "")
	}
	must(w.t, "fill the queue", channel.Publish("", full, false, false, amqp.Publishing{}))
}

func (r *relay) rejections() (n float64) {
	for series, count := range r.metrics() {
		if strings.HasPrefix(series, "cdc_relay_messages_refused_total{") {
			n += count
		}
	}
	return n
}

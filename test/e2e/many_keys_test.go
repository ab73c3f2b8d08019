package e2e

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// There are more keys than the relay remembers. Every batch is received as fast as the first, and afterwards all keys
// leave in order.
func TestManyKeysWaitWhileTheBrokerIsDown(t *testing.T) {
	services.Thorough(t, "fills a table")
	w := newWorld(t).plainly().setUp()
	proxy, address := through(t, w.broker)
	w.settings = append(w.settings, "CDC_RELAY_AMQP_URL="+address)
	arrived := w.consume(w.queue)
	r := w.run()
	proxy.Refuse()
	proxy.Cut()
	const batch = 40_000
	batches := sized(5, 25)
	first := time.Duration(0)
	for n := range batches {
		w.exec(`INSERT INTO outbox (routing_key, ordering_key, payload)
			SELECT $1, 'key ' || n, json_build_object('k', 'key ' || n, 'n', 1) FROM generate_series($2::int, $3::int) n`,
			w.queue, n*batch, (n+1)*batch-1)
		began := time.Now()
		w.eventually("the slot advances", func() bool { return w.lag().Confirmed < 1 })
		took := time.Since(began)
		if n == 0 {
			first = took
		}
		t.Logf("batch %d was received in %s", n, took.Round(time.Millisecond))
		inTime(t, "receiving a batch", took, 4*first+2*time.Second)
	}
	w.exec(`INSERT INTO outbox (routing_key, ordering_key, payload)
		SELECT $1, 'key ' || n, json_build_object('k', 'key ' || n, 'n', 2) FROM generate_series(0, $2::int) n`, w.queue, batch-1)
	if mb := r.residentMB(); mb > 150 {
		t.Errorf("the relay takes %d MB", mb)
	} else {
		t.Logf("the relay takes %d MB", mb)
	}
	proxy.Accept()
	total := (batches + 1) * batch
	w.eventually("all arrive", func() bool { return arrived.distinct() == total })
	w.emptied()
	w.inOrder(arrived, nil)
	id := w.insert(row{"ordering_key": "key 7"})
	w.await(arrived, id)
}

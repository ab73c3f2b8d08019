package relay

import (
	"runtime"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// A large body is in memory once while the stream passes it, and once while it is published. RabbitMQ's refusal of the
// first body that is too large names its limit, so further ones are not read. No body is copied beyond that.
func TestALargeBodyNeedsLittleMoreMemoryThanItsSize(t *testing.T) {
	services.Thorough(t, "starts its own broker")
	i := newInstance(t)
	i.amqp = services.PrivateRabbitMQ(t, "max_message_size = 1000000").URL("")
	r, stop := i.start()
	i.await("the relay streams", func() bool { return r.Health().Role == "streaming" })
	const size = 40_000_000 // more than the stream copies
	for n, most := range []float64{2.5, 1.5} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		i.exec(`INSERT INTO outbox (routing_key, payload) VALUES ('nowhere', to_json(repeat('x', $1::int)))`, size)
		i.await("a dead letter", func() bool {
			var dead int
			err := i.db.QueryRow(t.Context(), `SELECT count(*) FROM outbox_dead_letter WHERE failure_reason = 'too_large'
				AND last_error LIKE 'too_large: %message size 40000002 is larger than%max size 1000000%' AND attempts = 0`).Scan(&dead)
			return err == nil && dead == n+1
		})
		runtime.ReadMemStats(&after)
		if times := float64(after.TotalAlloc-before.TotalAlloc) / size; times > most {
			t.Errorf("body %d: %.1f times its size was allocated, want at most %.1f", n+1, times, most)
		} else {
			t.Logf("body %d: %.1f times its size was allocated", n+1, times)
		}
	}
	stop()
}

package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// The names of all standbys match the relay's walsender, too.
func TestTheRelayIsNeverASynchronousStandby(t *testing.T) {
	services.Thorough(t, "starts its own servers")
	t.Parallel()
	p := newReplicated(t)
	w := p.world.setUp()
	arrived := w.consume(w.queue)
	w.run()
	for _, names := range []string{"*", "ANY 1 (*)"} {
		must(t, "configure", p.primary.Exec(t.Context(), "",
			`ALTER SYSTEM SET synchronous_standby_names = '`+names+`'`, `SELECT pg_reload_conf()`))
		w.eventually("the relay reports no flush position", func() bool {
			return value[bool](w, `SELECT r.flush_lsn IS NULL AND r.write_lsn IS NOT NULL FROM pg_stat_replication r
				JOIN pg_replication_slots s ON s.active_pid = r.pid WHERE s.slot_name = $1`, w.slot)
		})
		began, most := time.Now(), lag{}
		for range 20 {
			w.writeWAL(2)
			most.Confirmed = max(most.Confirmed, w.lag().Confirmed)
		}
		t.Logf("%s: 20 commits of 2 MB took %s; the slot was at most %.0f MB behind", names, time.Since(began), most.Confirmed)
		w.slotFollows()

		must(t, "stop the standby", p.standby.Stop(t.Context(), services.Fast))
		committed := make(chan string, 1)
		go func() {
			var id string
			_ = w.db.QueryRow(context.WithoutCancel(t.Context()), `INSERT INTO outbox (routing_key, payload) VALUES ($1, '{}')
				RETURNING message_id::text`, w.queue).Scan(&id)
			committed <- id
		}()
		statuses := map[string]bool{}
		w.eventually("the relay has sent several statuses", func() bool {
			statuses[value[string](w, `SELECT r.reply_time::text FROM pg_stat_replication r
				JOIN pg_replication_slots s ON s.active_pid = r.pid WHERE s.slot_name = $1`, w.slot)] = true
			return len(statuses) > 5
		})
		select {
		case <-committed:
			t.Fatalf("%s: a COMMIT succeeded although no standby has it", names)
		default:
		}
		must(t, "start the standby", p.standby.Start(t.Context()))
		w.await(arrived, <-committed)
	}
	w.emptied()
}

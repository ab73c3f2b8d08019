package e2e

import (
	"context"
	"strings"
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

// COMMIT waits for a synchronous standby that is gone: that of the relay, or that of an application.
func TestACommitThatHangsIsNamed(t *testing.T) {
	services.Thorough(t, "starts its own server, and waits until statements count as hung")
	t.Parallel()
	server := services.PrivatePostgres(t)
	must(t, "make a database", server.Exec(t.Context(), "", `CREATE DATABASE app`))
	w := newWorldOn(t, server.URL("app"), services.VHost(t)).setUp()
	arrived := w.consume(w.queue)
	for _, asynchronous := range []bool{true, false} { // the application's commits, and so only those of the relay hang
		for _, args := range [][]string{nil, {"--mode", "poll", "--poll-interval", "100ms"}} {
			if !asynchronous && args != nil {
				continue // nothing is published: the row is invisible
			}
			r := w.run(args...)
			release := server.StallCommits(t)
			inserted := make(chan error, 1)
			go func() {
				_, err := w.db.Exec(context.WithoutCancel(t.Context()), `WITH s AS (SELECT set_config('synchronous_commit', $2, true))
					INSERT INTO outbox (routing_key, payload) SELECT $1, '{}' FROM s`, w.queue, map[bool]string{true: "off", false: "on"}[asynchronous])
				inserted <- err
			}()
			w.eventually("the relay is not ready, and says why", func() bool {
				page, status := r.get("/readyz")
				return status == 503 && strings.Contains(page, "waits for a synchronous standby, of 'nobody'")
			})
			w.fails([]string{"check"}, "waits for a synchronous standby (synchronous_standby_names: nobody)")
			if len(linesWith(r.logs(), `"commit_waits"`)) == 0 {
				t.Error("the log does not name it")
			}
			release()
			must(t, "insert", <-inserted)
			w.eventually("the relay is ready again", r.ready)
			w.emptied()
			r.stop()
		}
	}
	noDuplicates(t, arrived)
}

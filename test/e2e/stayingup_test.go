package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// No attempt is charged.
func TestOutagesOfPostgresLoseNothing(t *testing.T) {
	t.Parallel()
	server := services.PrivatePostgres(t)
	vhost := services.VHost(t)
	world := func(t *testing.T) *world {
		t.Helper()
		return newWorldOn(t, server.Database(t), vhost).setUp()
	}

	rounds := 2
	if testing.Short() {
		rounds = 1
	}
	for name, fault := range map[string]func(*testing.T) error{
		"restarted at once (-m immediate)": func(t *testing.T) error { return server.Restart(t.Context(), services.Immediate) },
		"killed": func(t *testing.T) error {
			must(t, "kill", server.Kill(t.Context()))
			return server.Start(t.Context())
		},
		// pg_ctl waits until walsenders have sent everything, so a relay that does not read would delay it.
		"stopped in good order (-m fast)": func(t *testing.T) error {
			within(t, "pg_ctl stop -m fast", 3*time.Second, func() { must(t, "stop", server.Stop(t.Context(), services.Fast)) })
			return server.Start(t.Context())
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := world(t)
			arrived := w.consume(w.queue)
			r := w.run("--max-in-flight", "500")
			load := w.write(3)
			for range rounds {
				load.more(1000)
				must(t, name, fault(t))
				w.db.Reset()
				within(t, "streaming again", 5*time.Second, w.streamed)
				load.more(500)
			}
			// The process remembers what was published and not yet deleted at the crash.
			load.allArrive(arrived, 0)
			r.noRejections()
		})
	}
}

// No attempt is charged, rows wait in the table, and no WAL is retained.
func TestOutagesOfRabbitMQLoseNothing(t *testing.T) {
	t.Parallel()
	server := services.PrivateRabbitMQ(t)
	world := func(t *testing.T) *world {
		t.Helper()
		return newWorldOn(t, services.Database(t), server.VHost(t)).setUp()
	}

	// The broker writes a queue to disk some time after its declaration. The orderly stop in the first part does so,
	// and the queue survives the kill in the second.
	old := world(t)

	t.Run("away at the start", func(t *testing.T) {
		w := world(t)
		must(t, "stop", server.Stop(t.Context()))
		r := w.start()
		w.insert(nil)
		w.insert(row{"ordering_key": "k"})
		w.eventually("the relay streams", func() bool { return r.metric("cdc_relay_slot_held") == 1 })
		w.slotFollows()
		if _, status := r.get("/readyz"); status != 503 {
			t.Errorf("/readyz without a broker: %d", status)
		}
		must(t, "start", server.Start(t.Context()))
		within(t, "delivering", 5*time.Second, w.emptied)
		arrived := w.consume(w.queue)
		w.eventually("both have arrived", func() bool { return arrived.distinct() == 2 })
	})

	t.Run("killed and restarted", func(t *testing.T) {
		w := *old
		w.t = t
		r := w.run("--max-in-flight", "300")
		load := w.write(2)
		load.more(1000)
		must(t, "kill", server.Kill(t.Context()))
		w.eventually("the relay is not ready", func() bool { return !r.ready() })
		load.more(2000)
		w.eventually("rows stay in the table", func() bool { return r.metric("cdc_relay_messages_spilled_total") > 0 })
		w.slotFollows()
		w.noAttempts()
		must(t, "start", server.Start(t.Context()))
		if _, err := w.channel().QueueDeclarePassive(w.queue, true, false, false, false, nil); err != nil {
			t.Fatalf("the broker has lost the queue: %v", err)
		}
		published := r.metric("cdc_relay_messages_published_total")
		within(t, "publishing again", 5*time.Second, func() {
			w.eventually("the relay publishes again", func() bool { return r.metric("cdc_relay_messages_published_total") > published })
		})
		load.more(500)
		// Consumed only now, so that every duplicate is the relay's.
		load.allArrive(w.consume(w.queue), 300)
		r.noRejections()
	})

	t.Run("blocked by a memory alarm", func(t *testing.T) {
		w := world(t)
		arrived := w.consume(w.queue)
		r := w.run("--max-in-flight", "300")
		load := w.write(2)
		load.more(500)
		w.watermark(server, "absolute", "1MB")
		t.Cleanup(func() { _, _ = server.Ctl(context.WithoutCancel(t.Context()), "set_vm_memory_high_watermark", "0.6") })
		w.eventually("rows stay in the table", func() bool { return r.metric("cdc_relay_messages_spilled_total") > 0 })
		w.eventually("/readyz says that the broker is blocked", func() bool {
			page, _ := r.get("/readyz")
			return len(linesWith(page, "publisher: not ready, blocked")) == 1
		})
		load.more(2000)
		w.slotFollows()
		w.noAttempts()
		if n := r.metric("cdc_relay_messages_in_flight"); n > 300 {
			t.Errorf("%v messages in memory", n)
		}
		w.watermark(server, "0.6")
		within(t, "publishing again", 5*time.Second, func() {
			before := arrived.distinct()
			w.eventually("messages arrive again", func() bool { return arrived.distinct() > before })
		})
		load.allArrive(arrived, 300)
		r.noRejections()
	})
}

func (w *world) watermark(server *services.RabbitMQ, args ...string) {
	w.t.Helper()
	if out, err := server.Ctl(w.t.Context(), append([]string{"set_vm_memory_high_watermark"}, args...)...); err != nil {
		w.t.Fatalf("set the watermark: %v\n%s", err, out)
	}
}

// streamed waits until the server shows that a relay streams from the slot.
func (w *world) streamed() {
	w.t.Helper()
	w.eventually("a relay streams", func() bool {
		return value[bool](w, `SELECT EXISTS (SELECT 1 FROM pg_replication_slots s JOIN pg_stat_replication r ON r.pid = s.active_pid
			WHERE s.slot_name = $1 AND r.state = 'streaming')`, w.slot)
	})
}

// slotFollows checks that the slot advances to the current position: no WAL is retained.
func (w *world) slotFollows() {
	w.t.Helper()
	now := value[string](w, `SELECT pg_current_wal_flush_lsn()::text`)
	w.eventually(fmt.Sprintf("the slot has followed to %s", now), func() bool {
		return value[bool](w, `SELECT confirmed_flush_lsn >= $1::pg_lsn FROM pg_replication_slots WHERE slot_name = $2`, now, w.slot)
	})
}

func TestACleanRestartNeitherLosesNorDuplicates(t *testing.T) {
	w, arrived := consuming(t)
	const rows = 20_000
	for i := range 4 {
		r := w.run("--log-level", "debug")
		if i%2 == 0 {
			w.copyRows(rows/4, w.queue)
		} else {
			w.insertMany(rows / 4)
		}
		w.eventually("some rows arrive", func() bool { return arrived.distinct() > rows/4*i+rows/20 })
		r.stopsWell()
		for _, what := range []string{
			`"event":"postgres_connected","version":"`, `"event":"leader_started"`, `"event":"streaming"`,
			`"event":"relay_stopping"`, `"event":"relay_stopped"`, "deleted or updated rows",
		} {
			if !strings.Contains(r.logs(), what) {
				t.Errorf("the log has no %s", what)
			}
		}
		if n := strings.Count(r.logs(), "\n"); n > rows/4 {
			t.Errorf("%d lines for %d messages, want one for each batch", n, rows/4)
		}
	}
	w.run()
	w.eventually("all rows arrive", func() bool { return arrived.distinct() == rows })
	w.emptied()
	noDuplicates(t, arrived)
}

// Kept in memory, either number of rows would need nearly twice the limit or more.
func TestALargeTransactionUsesBoundedMemory(t *testing.T) {
	services.Thorough(t, "takes half a minute")
	w := newWorld(t).plainly().setUp()
	arrived := w.consume(w.queue)
	arrived.onlyCount()
	r := w.run()
	rows := sized(150_000, 1_000_000)
	w.exec(`INSERT INTO outbox (routing_key, payload)
		SELECT $1, json_build_object('n', n, 'text', repeat('x', 200)) FROM generate_series(1, $2) n`, w.queue, rows)
	w.eventually("all rows arrive", func() bool { return arrived.distinct() == rows })
	if mb := r.residentMB(); mb >= sized(85, 150) {
		t.Errorf("the relay took %d MB", mb)
	} else {
		t.Logf("the relay took %d MB", mb)
	}
	w.eventually("the table is empty", w.outboxEmpty)
	noDuplicates(t, arrived)
}

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

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// insertMany inserts rows without a key in one transaction.
func (w *world) insertMany(rows int) {
	w.t.Helper()
	w.exec(`INSERT INTO outbox (routing_key, payload)
		SELECT $1, json_build_object('n', n, 'text', repeat('x', 100)) FROM generate_series(1, $2) n`, w.queue, rows)
}

// writeWAL writes this many MB of WAL that do not concern the outbox, with pg_logical_emit_message.
func (w *world) writeWAL(mb int) {
	w.t.Helper()
	w.exec(`SELECT count(pg_logical_emit_message(true, 'other tables', repeat('x', 1000000))) FROM generate_series(1, $1)`, mb)
}

// `pg_ctl stop -m fast` waits until walsenders have sent everything, so a relay that does not read would delay it.
// Nothing is lost, and because the process survives, nothing is duplicated.
func TestTheRelayDoesNotDelayAFastStopOfPostgres(t *testing.T) {
	t.Parallel()
	server := services.PrivatePostgres(t)
	vhost := services.VHost(t)
	for name, busy := range map[string]func(*world) (committed func() int){
		"streaming under load": func(w *world) func() int {
			w.run()
			load := w.write(4)
			load.more(2000)
			return func() int {
				load.more(1000)
				load.end()
				return load.rows()
			}
		},
		"catching up with old WAL": func(w *world) func() int {
			r := w.run()
			r.stop()
			// The open transaction keeps the relay from recreating the slot, until the stop ends it.
			open, err := w.db.Begin(w.t.Context())
			must(w.t, "begin", err)
			_, err = open.Exec(w.t.Context(), `SELECT pg_current_xact_id()`)
			must(w.t, "write", err)
			w.writeWAL(sized(300, 600))
			r = w.start()
			w.eventually("the relay leads", func() bool { return r.metric("cdc_relay_slot_held") == 1 })
			if !r.says("/readyz", "stream: ready, catching up") {
				w.t.Log("the relay had caught up before the stop")
			}
			w.insertMany(20)
			return func() int {
				_ = open.Rollback(w.t.Context()) // the stop has done that already
				logs := r.logs()
				caughtUp := strings.Index(logs, `"event":"streaming"`) < strings.Index(logs, "stream_down")
				if !caughtUp && !strings.Contains(logs, "dropped slot "+w.slot+": ") {
					w.t.Error("the slot was not recreated")
				}
				return 20
			}
		},
		"in the middle of a large transaction": func(w *world) func() int {
			r := w.run()
			rows := sized(20_000, 500_000)
			w.insertMany(rows)
			w.eventually("rows are streamed", func() bool { return r.metric("cdc_relay_messages_published_total") > 100 })
			return exactly(rows)
		},
		"sweeping a backlog": func(w *world) func() int {
			rows := sized(20_000, 200_000)
			w.insertMany(rows)
			r := w.run()
			w.eventually("rows are swept", func() bool { return r.metric("cdc_relay_messages_published_total") > 1000 })
			return exactly(rows)
		},
		"one streaming and two standing by": func(w *world) func() int {
			w.run()
			for range 2 {
				other := w.run()
				w.eventually("the other relay is a standby", other.standsBy)
			}
			return exactly(0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "streaming under load" {
				services.Thorough(t, "one of many situations")
			}
			w := newWorldOn(t, server.Database(t), vhost).setUp()
			w.settings = append(w.settings, "CDC_RELAY_SEND_TIMEOUT=5m") // on a busy machine, a broker can need more than 10 s
			arrived := w.consume(w.queue)
			committed := busy(w)
			within(t, "pg_ctl stop -m fast", 3*time.Second, func() { must(t, "stop", server.Stop(t.Context(), services.Fast)) })
			must(t, "start", server.Start(t.Context()))
			w.db.Reset()
			within(t, "streaming again", 4*time.Second, w.streamed)
			rows := committed()
			w.eventually("the table is empty", w.outboxEmpty)
			w.eventually("all arrive", func() bool { return arrived.distinct() >= rows })
			noDuplicates(t, arrived)
			w.noDeadLetters()
		})
	}
}

func exactly(n int) func() int { return func() int { return n } }

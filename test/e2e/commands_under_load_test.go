package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// repeatCommand repeats a command until ctx is done; each run must succeed.
func (w *world) repeatCommand(ctx context.Context, commands *sync.WaitGroup, args ...string) {
	commands.Go(func() {
		for ctx.Err() == nil {
			cmd := exec.Command(w.binary, args...)
			cmd.Env = w.env()
			if out, err := cmd.CombinedOutput(); err != nil {
				w.t.Errorf("%v: %v\n%s", args, err, out)
				return
			}
		}
	})
}

// While two relays run, retry and requeue run all the time, the binding is removed and restored, and one relay stops:
// everything arrives, and duplicates are marked.
func TestCommandsUnderLoadLoseNoMessage(t *testing.T) {
	services.Thorough(t, "each command has a test in the quick run")
	w := newWorld(t).setUp()
	exchange := w.queue + "-exchange"
	channel := w.channel()
	if err := channel.ExchangeDeclare(exchange, "direct", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = channel.ExchangeDelete(exchange, false, false) })
	arrived := w.consume(w.queue)
	args := []string{"--max-retries", "1", "--backoff-time", "150ms", "--poll-interval", "50ms", "--exchange", exchange}
	first, second := w.run(args...), w.run(args...)

	running, stop := context.WithCancel(t.Context())
	defer stop()
	var commands sync.WaitGroup
	w.repeatCommand(running, &commands, "resend", "--state", "retrying", "--ordering-key", "k0")
	w.repeatCommand(running, &commands, "resend", "--state", "retrying", "--ordering-key", "k1")
	w.repeatCommand(running, &commands, "resend", "--state", "dead", "--all")
	w.repeatCommand(running, &commands, "stats", "--format", "json")
	commands.Go(func() { w.rebind(running, channel, exchange) })

	keys := numbered("k", 5)
	each := sized(200, 5000)
	writers := w.loadKeys(keys, each, toDefault)
	w.exec(`INSERT INTO outbox (routing_key, payload) SELECT $1, to_json(n) FROM generate_series(1, $2::int) n`, w.queue, each)
	writers.Wait()
	w.eventually("some have arrived", func() bool { return arrived.distinct() > each/10 })
	died := first.metric("cdc_relay_messages_dead_lettered_total")
	if code := first.stop(); code != 0 {
		t.Errorf("exit %d", code)
	}
	stop()
	commands.Wait()
	if err := channel.QueueBind(w.queue, w.queue, exchange, false, nil); err != nil {
		t.Fatal(err)
	}
	all := each * (len(keys) + 1)
	w.eventually("all have arrived", func() bool {
		if out, code := w.command("resend", "--state", "dead", "--all"); code != 0 {
			t.Fatalf("exit %d: %s", code, out)
		}
		return arrived.distinct() == all && w.outboxEmpty() && w.deadLetters() == 0
	})
	t.Logf("%g messages became dead letters", died+second.metric("cdc_relay_messages_dead_lettered_total"))
	if n := arrived.unmarkedDuplicates(); n != 0 {
		t.Errorf("%d duplicates are not marked", n)
	}
}

// rebind removes and restores the binding until ctx is done.
func (w *world) rebind(ctx context.Context, channel *amqp.Channel, exchange string) {
	tick := time.NewTicker(400 * time.Millisecond)
	defer tick.Stop()
	for bound := false; ctx.Err() == nil; bound = !bound {
		var err error
		if bound {
			err = channel.QueueUnbind(w.queue, w.queue, exchange, nil)
		} else {
			err = channel.QueueBind(w.queue, w.queue, exchange, false, nil)
		}
		if err != nil {
			w.t.Errorf("bind: %v", err)
			return
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// Stats reads no table as a whole, and is fast with any backlog.
func TestStatsIsCheapWithManyRows(t *testing.T) {
	services.Thorough(t, "200,000 rows")
	w := newWorld(t).setUp()
	rows := sized(200_000, 10_000_000)
	w.exec(`INSERT INTO outbox (routing_key, ordering_key, payload, available_at, attempts, last_error)
		SELECT 'r' || i % 7, CASE WHEN i % 10 = 0 THEN 'k' || i % 1000 END, '{"n": 1}', CASE WHEN i % 100 = 1 THEN now() + i * interval '1 second' END,
		       CASE WHEN i % 100 = 1 THEN 1 ELSE 0 END, CASE WHEN i % 100 = 1 THEN 'nack' END FROM generate_series(1, $1::int) i`, rows)
	scans := func() int64 {
		w.exec(`SELECT pg_stat_clear_snapshot()`)
		return value[int64](w, `SELECT sum(seq_scan)::bigint FROM pg_stat_user_tables WHERE relname IN ('outbox', 'outbox_dead_letter')`)
	}
	w.command("stats") // fill the cache
	before := scans()
	begun := time.Now()
	s := answer[struct {
		QueueDepth int               `json:"queue_depth"`
		Precision  map[string]string `json:"precision"`
	}](w, 0, "stats")
	inTime(t, "stats", time.Since(begun), time.Second)
	if s.Precision["queue_depth"] != "estimate" || s.QueueDepth < rows*8/10 || s.QueueDepth > rows*12/10 {
		t.Errorf("got %+v of %d rows", s, rows)
	}
	id := value[int64](w, `SELECT max(id) FROM outbox`)
	if out, code := w.command("explain", fmt.Sprint(id)); code != 0 {
		t.Errorf("exit %d: %s", code, out)
	}
	w.eventually("the statistics have arrived", func() bool {
		return value[bool](w, `SELECT count(*) > 0 FROM pg_stat_user_tables WHERE idx_scan > 0 AND relname = 'outbox'`)
	})
	if n := scans() - before; n != 0 {
		t.Errorf("%d scans of whole tables", n)
	}
}

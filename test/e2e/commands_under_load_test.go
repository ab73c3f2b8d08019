package e2e

import (
	"context"
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
	must(t, "declare", channel.ExchangeDeclare(exchange, "direct", true, false, false, false, nil))
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
	w.repeatCommand(running, &commands, "stats", "--json")
	commands.Go(func() { w.rebind(running, channel, exchange) })

	keys := numbered("k", 5)
	each := sized(200, 5000)
	writers := w.loadKeys(keys, each, toDefault)
	w.exec(`INSERT INTO outbox (routing_key, payload) SELECT $1, to_json(n) FROM generate_series(1, $2::int) n`, w.queue, each)
	writers.Wait()
	w.eventually("some have arrived", func() bool { return arrived.distinct() > each/10 })
	died := first.metric("cdc_relay_messages_dead_lettered_total")
	first.stopsWell()
	stop()
	commands.Wait()
	must(t, "bind", channel.QueueBind(w.queue, w.queue, exchange, false, nil))
	all := each * (len(keys) + 1)
	w.eventually("all have arrived", func() bool {
		w.succeeds("resend", "--state", "dead", "--all")
		return arrived.distinct() == all && w.outboxEmpty() && w.deadLetters() == 0
	})
	t.Logf("%g messages became dead letters", died+second.metric("cdc_relay_messages_dead_lettered_total"))
	arrived.allMarked()
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

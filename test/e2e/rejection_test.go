package e2e

import (
	"fmt"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// rejection is a way in which the broker rejects one message.
type rejection struct {
	name   string
	row    row
	reason string // the code, in last_error and in the metric
	says   string // the broker's words, in last_error
}

func (w *world) rejections() []rejection {
	w.t.Helper()
	channel := w.channel()
	for _, name := range []string{"open", "without-queue"} {
		must(w.t, "declare", channel.ExchangeDeclare(w.queue+name, "direct", false, true, false, false, nil))
	}
	must(w.t, "bind", channel.QueueBind(w.queue, w.queue, w.queue+"open", false, nil))
	w.declareQueue(w.queue+"-full", amqp.Table{"x-max-length": int64(1), "x-overflow": "reject-publish"})
	w.insert(row{"routing_key": w.queue + "-full", "payload": `"fills it"`})
	return []rejection{
		{"an exchange that does not exist", row{"exchange": w.queue + "nowhere"}, "exchange_missing", "no exchange '" + w.queue + "nowhere'"},
		{"no queue bound", row{"exchange": w.queue + "without-queue"}, "unroutable", "NO_ROUTE"},
		{"no queue of that name", row{"routing_key": w.queue + "nobody"}, "unroutable", w.queue + "nobody"},
		{"a queue that rejects on overflow", row{"routing_key": w.queue + "-full"}, "nack", "rejected"},
	}
}

// Only this message is charged attempts, while others are in flight on the same connection.
func TestARejectedMessageIsRetriedThenDeadLettered(t *testing.T) {
	t.Parallel()
	w := newWorld(t).setUp()
	rejections := w.rejections()
	arrived, full := w.consume(w.queue), w.queue+"-full"
	r := w.run("--max-retries", "2", "--backoff-time", "30ms", "--poll-interval", "50ms")
	channel := w.channel()
	w.eventually("the queue with a limit is full", func() bool {
		q, err := channel.QueueDeclarePassive(full, true, false, false, false, nil)
		return err == nil && q.Messages == 1
	})
	ids := make([]string, len(rejections))
	const neighbours = 2000
	for part := range 10 {
		for i, c := range rejections {
			if part == i {
				ids[i] = w.insert(c.row)
			}
		}
		w.exec(`INSERT INTO outbox (exchange, routing_key, payload)
			SELECT CASE n % 2 WHEN 0 THEN $1 END, $2, '{}' FROM generate_series(1, $3) n`, w.queue+"open", w.queue, neighbours/10)
	}
	w.eventually("the neighbours arrive", func() bool { return arrived.distinct() == neighbours })
	for i, c := range rejections {
		dead := w.awaitDeadLetter(ids[i])
		if dead.Attempts != 3 || dead.FailureReason != "retries_exhausted" {
			t.Errorf("%s: dead after %d attempts with reason %q", c.name, dead.Attempts, dead.FailureReason)
		}
		if !strings.HasPrefix(dead.LastError, c.reason+": ") || !strings.Contains(dead.LastError, c.says) {
			t.Errorf("%s: the error is %q, want %q and %q", c.name, dead.LastError, c.reason, c.says)
		}
	}
	w.emptied()
	for reason, want := range map[string]float64{"exchange_missing": 3, "unroutable": 6, "nack": 3} {
		if n := r.metric(fmt.Sprintf(`cdc_relay_messages_refused_total{reason="%s"}`, reason)); n != want {
			t.Errorf("%v are counted as %s, want %v", n, reason, want)
		}
	}
	if n := r.rejections(); n != 12 {
		t.Errorf("%v rejections are counted, want three of each message", n)
	}
	arrived.allMarked()
	if n := w.deadLetters(); n != len(rejections) {
		t.Errorf("%d dead letters, want %d", n, len(rejections))
	}
}

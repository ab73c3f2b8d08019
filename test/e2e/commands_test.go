package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/await"
)

// answer runs a command with --json and parses its output.
func answer[T any](w *world, wantCode int, args ...string) (v T) {
	w.t.Helper()
	stdout, stderr, code := w.outputs(append(args, "--json")...)
	if code != wantCode {
		w.t.Fatalf("%v: exit %d\n%s%s", args, code, stdout, stderr)
	}
	if err := json.Unmarshal([]byte(stdout), &v); err != nil {
		w.t.Fatalf("%v: %v\n%s", args, err, stdout)
	}
	return v
}

func (w *world) toQueue(queue string, key any, n int) {
	w.t.Helper()
	w.exec(`INSERT INTO outbox (routing_key, ordering_key, payload)
		SELECT $1, $2, json_build_object('k', $2::text, 'n', n) FROM generate_series(1, $3::int) n`, queue, key, n)
}

func (w *world) deadLetters() int { return value[int](w, `SELECT count(*) FROM outbox_dead_letter`) }

func marked(l *ledger) (n int) {
	for _, d := range l.all() {
		if d.Headers["x-possible-duplicate"] == true {
			n++
		}
	}
	return n
}

// changed is the answer of resend and delete.
type changed struct {
	Matched, Resent, Deleted, Left int
	DryRun                         bool `json:"dry_run"`
}

// A nacked message may have reached another queue; a returned message has not.
func TestRequeuedMessagesThatWereNackedAreMarked(t *testing.T) {
	w := newWorld(t).setUp()
	full := w.queue + "-full"
	w.declareQueue(full, amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	w.run("--max-retries", "0", "--poll-interval", "100ms")
	w.toQueue(full, "k", 1)
	w.eventually("one message is in the queue", w.outboxEmpty)
	w.toQueue(full, "k", 1)
	w.eventually("one is dead", func() bool { return w.deadLetters() == 1 })
	arrived := w.consume(full)
	if got := answer[changed](w, 0, "resend", "--state", "dead", "--all"); got.Resent != 1 {
		t.Errorf("got %+v", got)
	}
	w.eventually("both have arrived", func() bool { return arrived.distinct() == 2 })
	if n := marked(arrived); n == 0 || n > 1 && !await.Busy() {
		t.Errorf("%d are marked, want 1", n)
	}
}

func TestRetryDoesNotWaitForTheBackoff(t *testing.T) {
	w := newWorld(t).setUp()
	w.run("--backoff-time", "1h", "--poll-interval", "100ms")
	late := w.queue + "-late"
	w.toQueue(late, "k", 3)
	w.toQueue(late, nil, 2)
	retrying := func() int {
		return value[int](w, `SELECT count(*) FROM outbox WHERE attempts > 0`)
	}
	w.eventually("the first of the key and those without one are rejected", func() bool { return retrying() == 3 })
	if got := answer[changed](w, 0, "resend", "--state", "retrying", "--all", "--dry-run"); got != (changed{Matched: 3, DryRun: true}) {
		t.Errorf("got %+v", got)
	}
	w.declareQueue(late, nil)
	arrived := w.consume(late)
	if got := answer[changed](w, 0, "resend", "--state", "retrying", "--reason", "unroutable"); got != (changed{Matched: 3, Resent: 3}) {
		t.Errorf("got %+v", got)
	}
	w.eventually("all have arrived", func() bool { return arrived.distinct() == 5 })
	w.eventually("the outbox is empty", w.outboxEmpty)
	if n := len(arrived.all()); n != 5 {
		t.Errorf("%d arrivals", n)
	}
	w.noMarks(arrived)
}

func TestStatsWatchRunsUntilItIsStopped(t *testing.T) {
	w := newWorld(t).setUp()
	cmd := exec.CommandContext(t.Context(), w.binary, "stats", "--watch", "--interval", "100ms", "--json")
	cmd.Env = w.env()
	out, err := cmd.StdoutPipe()
	must(t, "make a pipe", err)
	must(t, "start", cmd.Start())
	lines := json.NewDecoder(out)
	for want := range 3 { // it sees rows that are inserted meanwhile
		for seen := -1; seen != want; {
			var s struct {
				QueueDepth int `json:"queue_depth"`
			}
			must(t, "read a line", lines.Decode(&s))
			seen = s.QueueDepth
		}
		w.toQueue(w.queue, nil, 1)
	}
	must(t, "interrupt", cmd.Process.Signal(os.Interrupt))
	if err := cmd.Wait(); err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
}

func TestDeadLetterRetention(t *testing.T) {
	w := newWorld(t).setUp()
	w.exec(`INSERT INTO outbox_dead_letter (id, created_at, message_id, attempts, schema_version, routing_key, failure_reason, payload, dead_at)
		SELECT i, now(), gen_random_uuid(), 1, 1, 'r', 'nack', '1', now() - interval '2 days' FROM generate_series(1, 1200) i`)
	w.exec(`INSERT INTO outbox_dead_letter (id, created_at, message_id, attempts, schema_version, routing_key, failure_reason, payload)
		VALUES (5000, now(), gen_random_uuid(), 1, 1, 'r', 'nack', '1')`)
	r := w.run("--dead-letter-retention", "24h")
	w.eventually("the old dead letters are deleted", func() bool { return w.deadLetters() == 1 })
	w.eventually("the log has the number", func() bool {
		return strings.Contains(r.logs(), `"event":"dead_letters_deleted","dead_letters":1200`)
	})
	r.stopsWell()
}

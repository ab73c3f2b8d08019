package e2e

import (
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

func linesWith(text, what string) (found []string) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, what) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

// behindBroker is the same world, whose relays reach RabbitMQ through a proxy.
func (w *world) behindBroker() (*world, *services.Proxy) {
	w.t.Helper()
	return w.behind("CDC_RELAY_AMQP_URL", w.broker, nil)
}

// behindPostgres does the same for Postgres: the proxy distinguishes kinds of connections.
func (w *world) behindPostgres() (*world, *services.Proxy) {
	w.t.Helper()
	return w.behind("CDC_RELAY_DATABASE_URL", w.database, services.PostgresKinds)
}

func (w *world) behind(variable, address string, kinds services.Sorter) (*world, *services.Proxy) {
	w.t.Helper()
	parsed := mustURL(w.t, address)
	proxy, err := services.StartProxy(parsed.Host, kinds)
	must(w.t, "start a proxy", err)
	w.t.Cleanup(proxy.Close)
	parsed.Host = proxy.Addr()
	return w.with(variable + "=" + parsed.String()), proxy
}

// stalled is a relay with messages in flight at a broker that no longer answers.
func stalled(t *testing.T, args ...string) (*proxied, *relay) {
	t.Helper()
	p := newProxied(t)
	r := p.works(args...)
	p.unanswered(r, 100, 1)
	return p, r
}

// The exit code is that of the signal.
func TestASecondSignalEndsTheRelayAtOnce(t *testing.T) {
	t.Parallel()
	for signal, want := range map[syscall.Signal]int{syscall.SIGTERM: 143, syscall.SIGINT: 130} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			w, r := stalled(t)
			r.signal(syscall.SIGTERM)
			w.eventually("the relay is stopping", func() bool { return len(linesWith(r.logs(), "stopping")) > 0 })
			within(t, "ending", 3*time.Second, func() {
				w.eventually("a second signal ends it", func() bool { // sent at once, it counts as the first one
					r.signal(signal)
					return r.exited()
				})
				if code := r.exit(); code != want {
					t.Errorf("exit code %d, want %d", code, want)
				}
			})
			if said := "cdc-relay: second " + signal.String() + ": exiting at once"; !strings.Contains(r.logs(), said) {
				t.Errorf("the output does not contain %q", said)
			}
			w.rabbit.Resume()
			w.run()
			w.eventually("all arrive", func() bool { return w.arrived.distinct() == 101 })
			w.arrived.allMarked()
		})
	}
}

// The next relay publishes the messages in flight, marked.
func TestShutdownEndsInTimeWhileTheBrokerIsStalled(t *testing.T) {
	t.Parallel()
	w, r := stalled(t, "--shutdown-timeout", "1s")
	within(t, "stopping", 4*time.Second, func() {
		r.stopsWell()
	})
	if n := value[int](w.world, `SELECT count(*) FROM outbox`); n != 100 {
		t.Errorf("%d rows wait, want 100", n)
	}
	w.noAttempts()
	w.rabbit.Resume()
	w.run()
	w.eventually("all arrive", func() bool { return w.arrived.distinct() == 101 })
	w.arrived.allMarked()
	w.noDeadLetters()
}

// The broker answers before the timeout, and no message is published twice.
func TestShutdownWaitsForMessagesInFlight(t *testing.T) {
	t.Parallel()
	w, r := stalled(t)
	r.signal(syscall.SIGTERM)
	w.eventually("the relay is stopping", func() bool { return len(linesWith(r.logs(), "stopping")) > 0 })
	w.rabbit.Resume()
	if code := r.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	w.run()
	w.eventually("all arrive", func() bool { return w.arrived.distinct() == 101 })
	w.emptied()
	noDuplicates(t, w.arrived)
}

func mustURL(t *testing.T, text string) *url.URL {
	t.Helper()
	parsed, err := url.Parse(text)
	must(t, "read an address", err)
	return parsed
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

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

// through connects the relay to a server through a proxy.
func through(t *testing.T, address string) (*services.Proxy, string) {
	t.Helper()
	parsed := mustURL(t, address)
	proxy := services.NewProxy(t, parsed.Host)
	parsed.Host = proxy.Addr()
	return proxy, parsed.String()
}

// throughKinds does the same with a proxy that distinguishes kinds of connections to Postgres.
func throughKinds(t *testing.T, address string) (*services.Proxy, string) {
	t.Helper()
	parsed := mustURL(t, address)
	proxy, err := services.StartProxy(parsed.Host, services.PostgresKinds)
	must(t, "start a proxy", err)
	t.Cleanup(proxy.Close)
	parsed.Host = proxy.Addr()
	return proxy, parsed.String()
}

// behindItsOwnProxy is the same world for a relay with its own proxy to Postgres.
func (w *world) behindItsOwnProxy() (*world, *services.Proxy) {
	w.t.Helper()
	proxy, address := throughKinds(w.t, w.database)
	return w.with("CDC_RELAY_DATABASE_URL=" + address), proxy
}

// stalled is a relay with messages in flight at a broker that no longer answers.
func stalled(t *testing.T, args ...string) (*world, *relay, *services.Proxy, *ledger) {
	t.Helper()
	w, arrived := consuming(t)
	proxy, address := through(t, w.broker)
	w.settings = append(w.settings, "CDC_RELAY_AMQP_URL="+address)
	r := w.run(args...)
	w.await(arrived, w.insert(nil))
	w.emptied()
	proxy.BlackHole()
	w.copyRows(100, w.queue)
	w.eventually("messages are in flight", func() bool { return r.metric("cdc_relay_messages_in_flight") > 0 })
	return w, r, proxy, arrived
}

// The exit code is that of the signal.
func TestASecondSignalEndsTheRelayAtOnce(t *testing.T) {
	t.Parallel()
	for signal, want := range map[syscall.Signal]int{syscall.SIGTERM: 143, syscall.SIGINT: 130} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			w, r, proxy, arrived := stalled(t)
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
			proxy.Resume()
			w.run()
			w.eventually("all arrive", func() bool { return arrived.distinct() == 101 })
			arrived.allMarked()
		})
	}
}

// The next relay publishes the messages in flight, marked.
func TestShutdownEndsInTimeWhileTheBrokerIsStalled(t *testing.T) {
	t.Parallel()
	w, r, proxy, arrived := stalled(t, "--shutdown-timeout", "1s")
	within(t, "stopping", 4*time.Second, func() {
		r.stopsWell()
	})
	if n := value[int](w, `SELECT count(*) FROM outbox`); n != 100 {
		t.Errorf("%d rows wait, want 100", n)
	}
	w.noAttempts()
	proxy.Resume()
	w.run()
	w.eventually("all arrive", func() bool { return arrived.distinct() == 101 })
	arrived.allMarked()
	w.noDeadLetters()
}

// The broker answers before the timeout, and no message is published twice.
func TestShutdownWaitsForMessagesInFlight(t *testing.T) {
	t.Parallel()
	w, r, proxy, arrived := stalled(t)
	r.signal(syscall.SIGTERM)
	w.eventually("the relay is stopping", func() bool { return len(linesWith(r.logs(), "stopping")) > 0 })
	proxy.Resume()
	if code := r.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	w.run()
	w.eventually("all arrive", func() bool { return arrived.distinct() == 101 })
	w.emptied()
	noDuplicates(t, arrived)
}

func mustURL(t *testing.T, text string) *url.URL {
	t.Helper()
	parsed, err := url.Parse(text)
	must(t, "read an address", err)
	return parsed
}

// The first lines have both servers and the role; at debug, each batch has one line.
func TestTheLogShowsServersRoleAndBatches(t *testing.T) {
	t.Parallel()
	w, arrived := consuming(t)
	const rows = 2000
	w.copyRows(rows, w.queue) // before the stream: they are swept
	r := w.run("--log-level", "debug", "--max-retries", "7")
	w.emptied()
	w.copyRows(rows, w.queue) // streamed
	w.emptied()
	w.await(arrived, w.insert(nil))
	w.emptied()
	r.stopsWell()
	first, _, _ := strings.Cut(r.logs(), "\n")
	for _, field := range []string{`"event":"relay_started"`, `"version":`, `"commit":`, `"postgres":`, `"rabbitmq":`, `"slot":"` + w.slot + `"`, `"max_retries":7`} {
		if !strings.Contains(first, field) {
			t.Errorf("the first line has no %s: %s", field, first)
		}
	}
	for _, what := range []string{
		`"event":"postgres_connected"`, `"event":"broker_connected"`, `"event":"leader_started"`, `"event":"streaming"`,
		`"event":"relay_stopping"`, `"event":"relay_stopped"`,
		"publishing streamed rows", "deleted or updated rows", "scanned the table", `"sweep":"backlog"`,
	} {
		if len(linesWith(r.logs(), what)) == 0 {
			t.Errorf("the log has no %s", what)
		}
	}
	for _, connected := range append(linesWith(r.logs(), "postgres_connected"), linesWith(r.logs(), "broker_connected")...) {
		if !strings.Contains(connected, `"version":"`) || !strings.Contains(connected, `"address":"`) {
			t.Errorf("version or address of the server are missing: %s", connected)
		}
	}
	if n := strings.Count(r.logs(), "\n"); n > rows {
		t.Errorf("%d lines for %d messages, want one for each batch", n, 2*rows)
	}
}

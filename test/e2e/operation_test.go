package e2e

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// linesWith returns the lines of a text that contain what.
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

// During an outage a relay is live but not ready, and recovers by itself. The liveness file shows the same.
func TestHealthPagesNameTheFault(t *testing.T) {
	t.Parallel()
	w := newWorld(t).setUp()
	broker, amqpURL := through(t, w.broker)
	postgres, databaseURL := through(t, w.database)
	w.settings = append(w.settings, "CDC_RELAY_AMQP_URL="+amqpURL, "CDC_RELAY_DATABASE_URL="+databaseURL)
	file := filepath.Join(t.TempDir(), "alive")
	r := w.run("--liveness-file", file)
	says := func(path string, status int, parts ...string) func() bool {
		return func() bool {
			page, got := r.get(path)
			for _, part := range parts {
				if !strings.Contains("\n"+page, "\n"+part) {
					return false
				}
			}
			return got == status
		}
	}
	well := func() {
		t.Helper()
		w.eventually("all is well", says("/readyz", 200, "ready (streaming)", "publisher: ready", "stream: ready, streaming", "sweep: ready", "settle: ready"))
		w.eventually("the relay is live", says("/livez", 200, "live (streaming)", "publisher: live", "stream: live", "sweep: live", "settle: live"))
	}
	well()
	w.eventually("the liveness file exists", func() bool { return fresh(file) })
	broker.Refuse()
	broker.Cut()
	w.eventually("/readyz says that the broker is down", says("/readyz", 503, "not ready", "publisher: not ready"))
	w.eventually("the relay is live", says("/livez", 200, "live"))
	broker.Accept()
	well()
	postgres.Refuse()
	postgres.Cut()
	w.eventually("/readyz says that Postgres is down", says("/readyz", 503, "not ready", "stream: not ready", "sweep: not ready"))
	w.eventually("the relay is live", says("/livez", 200, "live"))
	was := modified(file)
	w.eventually("the liveness file is updated", func() bool { return modified(file).After(was) })
	postgres.Accept()
	well()
	for _, line := range []string{"cdc_relay_build_info{", "cdc_relay_stream_connected 1", "cdc_relay_slot_held 1", `cdc_relay_publisher_phase{phase="ready"} 1`} {
		if page, _ := r.get("/metrics"); !strings.Contains(page, "\n"+line) {
			t.Errorf("/metrics has no line %s", line)
		}
	}
	r.stop()
	if fresh(file) {
		t.Error("the liveness file was not removed")
	}
	repeated := make(map[string]int)
	for line := range strings.Lines(r.logs()) {
		if strings.Contains(line, `"level":"WARN"`) || strings.Contains(line, `"level":"ERROR"`) {
			repeated[line]++
		}
	}
	if len(repeated) > 20 {
		t.Errorf("two short outages made %d lines of warnings", len(repeated))
	}
}

func modified(file string) time.Time {
	info, err := os.Stat(file)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

func fresh(file string) bool { return time.Since(modified(file)) < 10*time.Second }

// Covers logs of outages and of failed logins, and all pages.
func TestNoPasswordIsLoggedOrShown(t *testing.T) {
	services.Thorough(t, "two outages")
	t.Parallel()
	w := newWorld(t).setUp()
	const secret = "s3cr3t+of/the%relay@x"
	role := w.slot
	w.exec(fmt.Sprintf(`CREATE ROLE %s LOGIN SUPERUSER PASSWORD '%s'`, role, secret))
	t.Cleanup(func() {
		_ = services.SharedPostgres(t).Exec(t.Context(), "", `DROP ROLE IF EXISTS `+role)
	})
	broker, amqpURL := through(t, w.broker)
	postgres, databaseURL := through(t, w.database)
	database, rabbit := mustURL(t, databaseURL), mustURL(t, amqpURL)
	database.User = url.UserPassword(role, secret)
	w.settings = append(w.settings, "CDC_RELAY_AMQP_URL="+rabbit.String(), "CDC_RELAY_DATABASE_URL="+database.String(), "CDC_RELAY_LOG_LEVEL=debug")
	r := w.run()
	for _, proxy := range []*services.Proxy{broker, postgres} {
		proxy.Refuse()
		proxy.Cut()
		w.eventually("the relay is not ready", func() bool { return !r.ready() })
		proxy.Accept()
		w.eventually("the relay is ready", r.ready)
	}
	said := r.logs()
	for _, path := range []string{"/readyz", "/livez", "/metrics"} {
		page, _ := r.get(path)
		said += page
	}
	r.stop()

	w.exec(fmt.Sprintf(`ALTER ROLE %s PASSWORD 'another'`, role))
	wrongDatabase := w.start()
	w.eventually("Postgres rejects the login", func() bool {
		return wrongDatabase.exited() || strings.Contains(wrongDatabase.logs(), "28P01") || strings.Contains(wrongDatabase.logs(), "password authentication failed")
	})
	wrongDatabase.kill()
	rabbit.User = url.UserPassword("guest", secret)
	w.settings = append(w.settings, "CDC_RELAY_AMQP_URL="+rabbit.String(), "CDC_RELAY_DATABASE_URL="+w.database)
	wrongBroker := w.start()
	w.eventually("the broker rejects the login", func() bool {
		return wrongBroker.exited() || len(linesWith(wrongBroker.logs(), `"level":"WARN"`)) > 0
	})
	page, _ := wrongBroker.get("/readyz")
	said += page + wrongBroker.logs() + wrongDatabase.logs()
	for _, form := range []string{secret, url.QueryEscape(secret), url.PathEscape(secret), "s3cr3t"} {
		for _, line := range linesWith(said, form) {
			t.Errorf("the password is in %s", line)
		}
	}
}

func mustURL(t *testing.T, text string) *url.URL {
	t.Helper()
	parsed, err := url.Parse(text)
	must(t, "read an address", err)
	return parsed
}

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// proxied is a world with proxies between its relays and both servers; the test itself connects directly. Replication
// connections can be broken separately.
type proxied struct {
	*world
	postgres, rabbit *services.Proxy
	arrived          *ledger // nil before works
}

func newProxied(t *testing.T) *proxied {
	t.Helper()
	w, postgres := newWorld(t).setUp().behindPostgres()
	w, rabbit := w.behindBroker()
	return &proxied{world: w, postgres: postgres, rabbit: rabbit}
}

func (p *proxied) works(args ...string) *relay {
	p.t.Helper()
	if p.arrived == nil {
		p.arrived = p.consume(p.queue)
	}
	r := p.run(args...)
	p.await(p.arrived, p.insert(nil))
	p.emptied()
	return r
}

func (r *relay) inFlight(atLeast int) {
	r.w.t.Helper()
	r.w.eventually("messages are in flight", func() bool {
		return r.metric("cdc_relay_messages_in_flight") >= float64(atLeast)
	})
}

// unanswered fills the relay's window with messages that the broker does not answer.
func (p *proxied) unanswered(r *relay, rows, window int) {
	p.t.Helper()
	p.rabbit.BlackHole()
	p.copyRows(rows, p.queue)
	r.inFlight(window)
}

func (w *world) locked() (release func()) {
	w.t.Helper()
	return w.holding(`LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE`)
}

// holding keeps a transaction open that has executed the statement.
func (w *world) holding(statement string) (end func()) {
	w.t.Helper()
	tx, err := w.db.Begin(w.t.Context())
	must(w.t, "begin", err)
	end = sync.OnceFunc(func() { _ = tx.Rollback(context.Background()) })
	w.t.Cleanup(end)
	if _, err := tx.Exec(w.t.Context(), statement); err != nil {
		w.t.Fatal(err)
	}
	return end
}

// It stops within --shutdown-timeout and a second, with code 0, and nothing is lost.
func TestTheRelayStopsInTimeDuringAnyFault(t *testing.T) {
	services.Thorough(t, "a stalled broker is enough for the quick run")
	t.Parallel()
	args := []string{"--shutdown-timeout", "1s", "--max-in-flight", "200"}
	for name, state := range map[string]func(p *proxied) *relay{
		"streaming": func(p *proxied) *relay {
			p.consume(p.queue)
			r := p.run(args...)
			p.write(2).more(200)
			return r
		},
		"ordinary connections to Postgres black-holed": func(p *proxied) *relay {
			r := p.works(args...)
			p.write(2).more(200)
			p.postgres.Only(services.Ordinary).BlackHole()
			r.inFlight(1) // until the relay is not certain that it leads
			return r
		},
		"replication connection black-holed": func(p *proxied) *relay {
			r := p.works(args...)
			p.postgres.Only(services.Replication).BlackHole()
			p.write(2).more(200)
			return r
		},
		"both black-holed": func(p *proxied) *relay {
			r := p.works(args...)
			p.unanswered(r, 5000, 200)
			p.postgres.BlackHole()
			return r
		},
		"table locked": func(p *proxied) *relay {
			r := p.works(args...)
			p.unanswered(r, 5000, 200)
			p.locked()
			p.rabbit.Resume()
			return r
		},
		"standing by, both black-holed": func(p *proxied) *relay {
			p.works()
			r := p.run(args...)
			p.eventually("the relay is a standby", r.standsBy)
			p.postgres.BlackHole()
			p.rabbit.BlackHole()
			return r
		},
		"polling, Postgres black-holed": func(p *proxied) *relay {
			r := p.works(append(args, "--mode", "poll", "--poll-interval", "10ms")...)
			p.write(2).more(200)
			p.postgres.BlackHole()
			return r
		},
		"starting, servers refuse": func(p *proxied) *relay {
			p.postgres.Refuse()
			p.rabbit.Refuse()
			r := p.start(args...)
			p.eventually("the log reports it", func() bool { return len(linesWith(r.logs(), "postgres_down")) > 0 })
			return r
		},
		"starting, servers black-holed": func(p *proxied) *relay {
			p.postgres.BlackHole()
			p.rabbit.BlackHole()
			r := p.start(args...)
			p.postgres.AwaitConnections(1)
			return r
		},
		"making a slot that waits for a transaction": func(p *proxied) *relay {
			p.works().stop()
			p.eventually("the slot is released and dropped", func() bool {
				return p.tryExec(`SELECT pg_drop_replication_slot($1)`, p.slot) == nil
			})
			p.holding(`SELECT pg_current_xact_id()`)
			r := p.start(args...)
			p.eventually("the log reports it", func() bool { return len(linesWith(r.logs(), "waits for transactions")) > 0 })
			return r
		},
		"connections to the health pages that say nothing": func(p *proxied) *relay {
			r := p.works(args...)
			for range 3 {
				conn, err := net.Dial("tcp", r.http)
				must(p.t, "connect", err)
				p.t.Cleanup(func() { _ = conn.Close() })
				if _, err := bufio.NewWriter(conn).WriteString("GET"); err != nil {
					p.t.Fatal(err)
				}
			}
			p.rabbit.BlackHole()
			p.copyRows(100, p.queue)
			r.inFlight(100)
			return r
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := state(newProxied(t))
			within(t, "stopping: "+name, 2*time.Second, func() {
				r.signal(syscall.SIGTERM)
				if code := r.exit(); code != 0 {
					t.Errorf("exit code %d", code)
				}
			})
		})
	}
}

func (r *relay) standsBy() bool {
	page, status := r.get("/readyz")
	return status == 200 && strings.HasPrefix(page, "ready (standby)\n")
}

// awaitNotReady waits until the relay is live but not ready, and its page has a line with this beginning.
func (r *relay) awaitNotReady(most time.Duration, line string) {
	r.w.t.Helper()
	within(r.w.t, "being not ready: "+line, most, func() {
		r.w.eventually(fmt.Sprintf("/readyz has the line %q", line), func() bool {
			page, status := r.get("/readyz")
			return status == 503 && strings.HasPrefix(page, "not ready") && strings.Contains(page, "\n"+line)
		})
	})
	if page, status := r.get("/livez"); status != 200 {
		r.w.t.Errorf("the relay is not live: %s", page)
	}
}

// noticeTime is how long a relay may stay ready while a part of it is stuck.
const noticeTime = 15 * time.Second

// It does so soon after the fault begins. After the fault, the relay delivers within two seconds and is ready.
func TestReadyzNamesTheStuckPart(t *testing.T) {
	services.Thorough(t, "waits for timeouts")
	t.Parallel()
	for name, stuck := range map[string]func(p *proxied, r *relay) (fix func()){
		"publisher: broker black-holed": func(p *proxied, r *relay) func() {
			p.rabbit.BlackHole()
			p.insert(nil)
			r.awaitNotReady(noticeTime, "publisher: not ready, ")
			return func() { p.rabbit.Resume() }
		},
		"stream: replication connection black-holed": func(p *proxied, r *relay) func() {
			p.postgres.Only(services.Replication).BlackHole()
			r.awaitNotReady(noticeTime, "stream: not ready, ")
			return func() { p.postgres.Only(services.Replication).Resume() }
		},
		"sweep and settle: ordinary connections black-holed": func(p *proxied, r *relay) func() {
			p.eventually("the relay streams", func() bool { return r.metric("cdc_relay_stream_connected") == 1 })
			p.postgres.Only(services.Ordinary).BlackHole()
			p.insert(nil)
			r.awaitNotReady(noticeTime, "sweep: not ready, ")
			r.awaitNotReady(noticeTime, "settle: not ready, ")
			return func() { p.postgres.Only(services.Ordinary).Resume() }
		},
		"sweep: table locked": func(p *proxied, r *relay) func() {
			release := p.locked()
			r.awaitNotReady(noticeTime, "sweep: not ready, ")
			return release
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProxied(t)
			r := p.works("--max-in-flight", "200", "--send-timeout", "2s")
			fix := stuck(p, r)
			<-time.After(sized(0, 80*time.Second)) // longer than any timeout
			if page, status := r.get("/livez"); status != 200 {
				t.Errorf("the relay is not live: %s", page)
			}
			fix()
			within(t, "delivering again", 2*time.Second, func() {
				p.await(p.arrived, p.insert(nil))
			})
			within(t, "delivering due rows", 4*time.Second, func() {
				p.await(p.arrived, p.insert(row{"available_at": value[time.Time](p.world, `SELECT clock_timestamp()`)}))
			})
			within(t, "being ready again", 5*time.Second, func() { p.eventually("the relay is ready", r.ready) })
			p.emptied()
			p.noDeadLetters()
		})
	}
}

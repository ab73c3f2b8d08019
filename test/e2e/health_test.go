package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

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

package e2e

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// replicated is a primary with a standby that has every acknowledged commit.
type replicated struct {
	world            *world // its URL names both
	primary, standby *services.Postgres
}

// newReplicated runs the statements in the database before it creates the standby.
func newReplicated(t *testing.T, statements ...string) *replicated {
	t.Helper()
	p := &replicated{primary: services.PrivatePostgres(t)}
	must(t, "make a database", p.primary.Exec(t.Context(), "", `CREATE DATABASE app`))
	must(t, "prepare the database", p.primary.Exec(t.Context(), "app", statements...))
	p.standby = services.Standby(t, p.primary)
	must(t, "wait for the standby at each commit", p.primary.Exec(t.Context(), "",
		`ALTER SYSTEM SET synchronous_standby_names = 'standby'`, `SELECT pg_reload_conf()`))
	both, err := url.Parse(p.primary.URL("app"))
	must(t, "read the address", err)
	both.Host += "," + p.standby.Addr()
	both.RawQuery += "&target_session_attrs=read-write"
	p.world = newWorldOn(t, both.String(), services.VHost(t))
	return p
}

func (p *replicated) failOver(t *testing.T) {
	t.Helper()
	must(t, "kill the primary", p.primary.Kill(t.Context()))
	must(t, "promote", p.standby.Promote(t.Context()))
	p.world.db.Reset()
}

func (p *replicated) onStandby(t *testing.T, what, sql string, args ...any) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), p.standby.URL("app"))
	must(t, "connect to the standby", err)
	defer conn.Close(t.Context())
	p.world.eventually(what, func() bool {
		var yes bool
		must(t, "ask the standby", conn.QueryRow(t.Context(), sql, args...).Scan(&yes))
		return yes
	})
}

// promoted expects that nothing is lost when the standby is promoted under load, after it has what is awaited.
func (p *replicated) promoted(t *testing.T, awaited func()) *relay {
	t.Helper()
	w := p.world.setUp()
	arrived := w.consume(w.queue)
	r := w.run("--max-in-flight", "500")
	load := w.write(2)
	load.more(500)
	awaited()
	p.failOver(t)
	within(t, "streaming again", 5*time.Second, w.streamed)
	load.more(500)
	load.allArrive(arrived, 500)
	r.noRejections()
	return r
}

// Without a failover slot the new primary has no slot, and the relay creates one.
func TestMessagesSurviveAPromotionOfTheStandby(t *testing.T) {
	t.Parallel()
	r := newReplicated(t).promoted(t, func() {})
	if n := strings.Count(r.logs(), "slot_created"); n != 1 {
		t.Errorf("the log says %d times that the slot was created", n)
	}
}

// The relay uses a failover slot that a DBA created (Postgres 17 and later) as it is.
func TestTheRelayContinuesWithTheStandbysFailoverSlot(t *testing.T) {
	services.Thorough(t, "a standby is promoted in the quick run")
	t.Parallel()
	if services.SharedPostgres(t).Major() < 17 {
		t.Skip("failover slots came with Postgres 17")
	}
	slot := services.Name(t)
	p := newReplicated(t, fmt.Sprintf(`SELECT pg_create_logical_replication_slot('%s', 'pgoutput', false, false, true)`, slot))
	p.world.slot = slot
	must(t, "hold the slot back for the standby", p.primary.Exec(t.Context(), "",
		`ALTER SYSTEM SET synchronized_standby_slots = 'standby'`, `SELECT pg_reload_conf()`))
	r := p.promoted(t, func() {
		p.onStandby(t, "the standby has the slot", `SELECT count(*) > 0 FROM pg_replication_slots
			WHERE slot_name = $1 AND synced AND NOT temporary AND invalidation_reason IS NULL`, slot)
	})
	if logs := r.logs(); strings.Contains(logs, "slot_created") || strings.Contains(logs, "slot_dropped") {
		t.Error("the slot was recreated")
	}
	if !value[bool](p.world, `SELECT failover AND active FROM pg_replication_slots WHERE slot_name = $1`, slot) {
		t.Error("the slot is not a failover slot any more")
	}
}

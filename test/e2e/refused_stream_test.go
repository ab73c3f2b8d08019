package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// It streams as soon as it can. All replication connections are in use, or a proxy rejects them.
func TestARelayThatCannotStreamPublishesFromTheTable(t *testing.T) {
	services.Thorough(t, "waits for timeouts")
	t.Parallel()
	w := newWorld(t).setUp()
	arrived := w.consume(w.queue)
	waited := w.insert(row{"ordering_key": "k"})
	one, toPostgres := w.behindItsOwnProxy()
	toPostgres.Only(services.Replication).Refuse()
	r := one.start()
	r.awaitNotReady(5*time.Second, "stream: not ready, not streaming: stream is down: retrying, and publishing rows from the table")
	w.await(arrived, waited)
	w.await(arrived, w.insert(nil))
	w.emptied()
	if n := r.metric("cdc_relay_stream_connected"); n != 0 {
		t.Errorf("cdc_relay_stream_connected is %v", n)
	}
	if lines := linesWith(r.logs(), "stream_down"); len(lines) == 0 || !strings.Contains(lines[0], `"WARN"`) {
		t.Errorf("the log says %q", lines)
	}

	toPostgres.Only(services.Replication).Accept()
	w.eventually("the relay streams", func() bool { return r.ready() && r.metric("cdc_relay_stream_connected") == 1 })
	w.await(arrived, w.insert(row{"ordering_key": "k"}))
	if code := r.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestAServerThatFallsSilentIsLogged: without that, the log said nothing for a minute.
func TestAServerThatFallsSilentIsLogged(t *testing.T) {
	services.Thorough(t, "waits for timeouts")
	t.Parallel()
	w := newWorld(t).setUp()
	one, toPostgres := w.behindItsOwnProxy()
	r := one.start()
	w.eventually("it streams", r.ready)
	toPostgres.Only(services.Replication).BlackHole()
	w.eventually("the log names the silence", func() bool {
		lines := linesWith(r.logs(), "stream_down")
		return len(lines) == 1 && strings.Contains(lines[0], "the server has sent nothing for 6s")
	})
	toPostgres.Only(services.Replication).Resume()
	w.eventually("the log says that it is over", func() bool { return len(linesWith(r.logs(), "stream_up")) == 1 })
	if code := r.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// as creates a role with these attributes and grants. Everything started from now on logs in with it.
func (w *world) as(attributes string, grants ...string) (role string) {
	w.t.Helper()
	role = services.Name(w.t)
	w.exec(`CREATE ROLE ` + role + ` LOGIN PASSWORD 'secret' ` + attributes)
	w.t.Cleanup(func() {
		_, _ = w.db.Exec(context.WithoutCancel(w.t.Context()), `DROP OWNED BY `+role+`; DROP ROLE `+role)
	})
	for _, grant := range grants {
		w.exec(`GRANT ` + grant + ` TO ` + role)
	}
	w.database = strings.Replace(w.database, mustURL(w.t, w.database).User.String()+"@", role+":secret@", 1)
	return role
}

// Waiting would not help.
func TestAnUnsupportedTableVersionStopsTheRelay(t *testing.T) {
	t.Parallel()
	w := newWorld(t).setUp()
	w.exec(`UPDATE outbox_migrations SET version = 99`)
	newer := w.start()
	role := w.as("REPLICATION", "SELECT, UPDATE, DELETE ON outbox", "SELECT ON SEQUENCE outbox_id_seq", "ALL ON outbox_dead_letter")
	for what, one := range map[string]struct {
		r    *relay
		says string
	}{
		"tables of a newer relay":       {newer, "newer cdc-relay"},
		"a version that it may not see": {w.start(), "GRANT SELECT ON public.outbox_migrations TO " + role},
	} {
		if code := one.r.exit(); code != 1 {
			t.Errorf("%s: exit code %d", what, code)
		}
		if log := one.r.logs(); !strings.Contains(log, one.says) {
			t.Errorf("%s: the log does not say what to do:\n%s", what, log)
		}
	}
}

// The relay also stops if it learns this only after some sweeps.
func TestARoleWithoutReplicationStopsTheRelayAtStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t).setUp()
	w.as("", "SELECT, UPDATE, DELETE ON outbox", "SELECT ON SEQUENCE outbox_id_seq", "ALL ON outbox_dead_letter, outbox_migrations")
	one, toPostgres := w.behindItsOwnProxy()
	toPostgres.Only(services.Replication).Refuse()
	r := one.start()
	r.awaitNotReady(5*time.Second, "stream: not ready, not streaming: stream is down")
	toPostgres.Only(services.Replication).Accept()
	if code := r.exit(); code == 0 {
		t.Errorf("exit code %d", code)
	}
	if log := r.logs(); !strings.Contains(log, "REPLICATION") {
		t.Errorf("the log does not say what is missing:\n%s", log)
	}
}

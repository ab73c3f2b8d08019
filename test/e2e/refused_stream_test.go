package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

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
	if log := r.logs(); !strings.Contains(log, "may not replicate") {
		t.Errorf("the log does not say what is missing:\n%s", log)
	}
}

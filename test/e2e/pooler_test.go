package e2e

import (
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// In transaction mode, settings of the relay would stay in sessions of applications.
func TestARelayBehindAPooler(t *testing.T) {
	t.Parallel()
	w, arrived := consuming(t)
	direct := w.database
	w.database = services.PgBouncer(t, direct, "pool_mode = transaction")
	for _, args := range [][]string{{"run", "--mode", "poll"}, {"drain"}, {"setup", "--mode", "poll"}, {"list"}} {
		if out, code := w.command(args...); code == 0 || !strings.Contains(out, "shares server processes") || !strings.Contains(out, "pool_mode = session") {
			t.Errorf("%s: exit %d\n%s", args, code, out)
		}
	}
	w.database = services.PgBouncer(t, direct, "pool_mode = session")
	w.run("--mode", "poll", "--poll-interval", "50ms")
	w.await(arrived, w.insert(nil))
}

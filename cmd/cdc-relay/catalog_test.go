package main

import (
	"regexp"
	"strings"
	"testing"
)

// On hardened servers, not every role may read the catalog. Each command that stops for that names the GRANT, and it is
// enough.
func TestARevokedCatalogGetsItsGrant(t *testing.T) {
	env, conn := fresh(t)
	role := newRole(t, conn, "", "LOGIN REPLICATION")
	want(t, cdcRelay(t, env, "setup", "--relay-role", role), exitDone)
	relays := asRole(t, env, conn, role)
	relays["CDC_RELAY_PUBLISHER"] = "stdout"
	given := regexp.MustCompile(`(GRANT (SELECT|EXECUTE|USAGE) ON|DO ).*;`)
	for _, test := range []struct{ object, commands string }{
		{"SELECT ON pg_stat_activity", "setup, check, stats, drain"},
		{"SELECT ON pg_stat_replication", "setup, check, stats"},
		{"SELECT ON pg_replication_slots", "setup, check, stats"},
		{"SELECT ON pg_class", "setup, check, drain"},
		{"SELECT ON pg_publication", "setup, check"},
		{"SELECT ON pg_publication_tables", "setup, check"},
		{"SELECT ON pg_roles", "setup, check"},
		{"SELECT ON pg_locks", "check, stats"},
		{"SELECT ON pg_stat_all_tables", "check"},
		{"SELECT ON pg_settings", "check"},
		{"EXECUTE ON FUNCTION pg_current_wal_flush_lsn()", "setup, check, stats"},
		{"EXECUTE ON FUNCTION has_table_privilege(oid, text)", "drain"},
	} {
		for command := range strings.SplitSeq(test.commands, ", ") {
			execute(t, conn, "REVOKE "+test.object+" FROM PUBLIC")
			r := cdcRelay(t, relays, strings.Fields(command)...)
			grant := given.FindString(r.stdout + r.stderr)
			if grant == "" {
				t.Errorf("%s without %s: no GRANT\n%s%s", command, test.object, r.stdout, r.stderr)
			} else {
				execute(t, conn, grant)
				if r = cdcRelay(t, relays, strings.Fields(command)...); strings.Contains(r.stdout+r.stderr, "permission denied") {
					t.Errorf("%s after %s: %s%s", command, grant, r.stdout, r.stderr)
				}
			}
			execute(t, conn, "GRANT "+test.object+" TO PUBLIC")
			execute(t, conn, "REVOKE "+test.object+` FROM "`+role+`"`)
		}
	}
}

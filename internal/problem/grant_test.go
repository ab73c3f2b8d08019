package problem

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// The name is all that the languages of the server share.
func TestObjectsOfTheCatalogGetAGrant(t *testing.T) {
	const none = "permission denied for "
	for message, want := range map[string]string{
		none + "view pg_stat_activity":                         "'pg_stat_activity'",
		"keine Berechtigung für Sicht pg_stat_activity":        "'pg_stat_activity'",
		"関数pg_current_wal_lsnへのアクセスが拒否されました":                   "'pg_current_wal_lsn'",
		"droit refusé pour la fonction has_table_privilege":    "'has_table_privilege'",
		"keine Berechtigung für Schema pg_catalog":             `GRANT USAGE ON SCHEMA pg_catalog TO "r 1";`,
		none + "table outbox":                                  "",
		none + "function outbox_enqueue":                       "",
		none + "view pg_x; DROP TABLE outbox":                  "'pg_x'",
		"must be superuser to call permission denied for view": "",
	} {
		err := fmt.Errorf("read: %w", &pgconn.PgError{Code: "42501", Message: message, Routine: "aclcheck_error"})
		if got := Grant(err, "r 1"); !strings.Contains(got, want) || (got == "") != (want == "") || strings.Contains(got, "DROP") {
			t.Errorf("%s: got %q, want %q", message, got, want)
		}
	}
	for _, err := range []error{errors.New(none + "view pg_locks"), &pgconn.PgError{Code: "42501", Message: none + "database pg_app", Routine: "CheckMyDatabase"}} {
		if got := Grant(err, "r"); got != "" {
			t.Errorf("%v: got %q", err, got)
		}
	}
}

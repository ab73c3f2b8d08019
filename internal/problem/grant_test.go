package problem

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestObjectsOfTheCatalogGetAGrant(t *testing.T) {
	for message, want := range map[string]string{
		"permission denied for view pg_stat_activity":          `GRANT SELECT ON pg_catalog.pg_stat_activity TO "r 1";`,
		"permission denied for table pg_class":                 `GRANT SELECT ON pg_catalog.pg_class TO "r 1";`,
		"permission denied for function pg_current_wal_lsn":    `GRANT EXECUTE ON FUNCTION pg_catalog.pg_current_wal_lsn TO "r 1";`,
		"permission denied for schema pg_catalog":              `GRANT USAGE ON SCHEMA pg_catalog TO "r 1";`,
		"permission denied for table outbox":                   "",
		"permission denied for function outbox_enqueue":        "",
		"permission denied for database pg_app":                "",
		"permission denied for view pg_x; DROP TABLE outbox":   "",
		"permission denied to create database pg_stat":         "",
		"must be superuser to call permission denied for view": "",
	} {
		err := fmt.Errorf("read: %w", &pgconn.PgError{Code: "42501", Message: message})
		if got := Grant(err, "r 1"); got != want {
			t.Errorf("%s: got %q, want %q", message, got, want)
		}
	}
	if got := Grant(errors.New("permission denied for view pg_locks"), "r"); got != "" {
		t.Errorf("an error of another program: got %q", got)
	}
}

package problem

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestErrorsGetAHint(t *testing.T) {
	const pooler = "not of a pooler"
	for name, test := range map[string]struct {
		err  error
		want string // the start or a part of the hint
	}{
		"a problem":                            {fmt.Errorf("start: %w", New("cdc-relay setup", "no table")), "cdc-relay setup"},
		"a prepared statement of another":      {&pgconn.PgError{Code: "42P05"}, pooler},
		"a prepared statement that is gone":    {fmt.Errorf("sweep: %w", &pgconn.PgError{Code: "26000"}), pooler},
		"a parameter that poolers do not take": {&pgconn.PgError{Code: "08P01", Message: "unsupported startup parameter: replication"}, pooler},
		"another violation":                    {&pgconn.PgError{Code: "08P01", Message: "invalid message format"}, ""},
		"a standby":                            {fmt.Errorf("drain: %w", &pgconn.PgError{Code: "25006"}), "use the primary"},
		"anything":                             {errors.New("broken pipe"), ""},
	} {
		if got := Hint(test.err); !strings.Contains(got, test.want) || test.want == "" && got != "" {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

package pgdial

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// The text is one line, with each address and cause once, and a hint.
func TestTextOfAConnectionError(t *testing.T) {
	for url, want := range map[string]string{
		"postgres://shop@127.0.0.1:1/shop":                             "127.0.0.1:1: connection refused", // twice, with and without TLS
		"postgres://shop@127.0.0.1:1,127.0.0.1:2/shop?sslmode=disable": "127.0.0.1:1: connection refused; 127.0.0.1:2: connection refused",
		"host=/nowhere user=shop":                                      "/nowhere/.s.PGSQL.5432: no such file or directory",
	} {
		_, err := pgconn.Connect(t.Context(), url)
		if err == nil {
			t.Fatalf("%s: connected", url)
		}
		err = fmt.Errorf("look for table t: %w", err)
		if got := Text(err); got != "look for table t: cannot connect to Postgres: "+want {
			t.Errorf("%s: got %q", url, got)
		}
		if hint := Hint(err); !strings.HasPrefix(hint, "pg_isready -h ") {
			t.Errorf("%s: the hint is %q", url, hint)
		}
	}
	if got := Text(errors.New("a\nb")); got != "a\nb" {
		t.Errorf("another error: got %q", got)
	}
}

package pgcode

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"
)

func TestCodeAndClassOfAnError(t *testing.T) {
	answer := fmt.Errorf("settle: %w", &pgconn.PgError{Code: "42501"})
	if Of(answer) != pgerrcode.InsufficientPrivilege || Class(answer) != "42" || !Is(answer, pgerrcode.UndefinedTable, pgerrcode.InsufficientPrivilege) || Is(answer, pgerrcode.UndefinedTable) {
		t.Errorf("%v: got %q of class %q", answer, Of(answer), Class(answer))
	}
	for _, other := range []error{nil, errors.New("broken pipe")} {
		if Of(other) != "" || Class(other) != "" || Is(other, pgerrcode.UndefinedTable) {
			t.Errorf("%v: got %q of class %q", other, Of(other), Class(other))
		}
	}
}

package schema

import (
	"errors"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// ExplainType returns a hint if a column with a wrong type can be the cause of an error, and otherwise the error.
func ExplainType(table outbox.Table, err error) error {
	mayBeType := errors.As(err, new(pgx.ScanArgError)) || pgcode.Is(err, pgerrcode.UndefinedFunction,
		pgerrcode.DatatypeMismatch, pgerrcode.CannotCoerce, pgerrcode.AmbiguousFunction)
	if !mayBeType {
		return err
	}
	return problem.Of(err, problem.Command(table, "check")+"  # names the column, and the SQL that converts it",
		"a column of table %s may have a wrong type", table)
}

package doctor

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/schema"
)

// askIdentity asks the server whether it would reject the deletes and updates of the relay. EXPLAIN runs nothing.
func (o Options) askIdentity(ctx context.Context, s *session) *problem.Problem {
	explained := read(ctx, s, func(tx pgx.Tx) (any, error) {
		const both = "EXPLAIN DELETE FROM %[1]s WHERE id = 0; EXPLAIN UPDATE %[1]s SET attempts = attempts WHERE id = 0"
		_, err := tx.Exec(ctx, fmt.Sprintf(both, o.Table.SQL()), pgx.QueryExecModeSimpleProtocol)
		return nil, err
	})
	// If this question fails, the names of the publications are missing.
	return read(ctx, s, func(tx pgx.Tx) (*problem.Problem, error) {
		return schema.ExplainIdentity(ctx, tx, o.Table, explained.err), nil
	}).value
}

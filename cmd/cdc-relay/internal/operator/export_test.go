package operator

import (
	"context"

	"github.com/jackc/pgx/v5/pgtype"
)

// HurriedStats returns the depth and the states as Stats reads them after a statement has taken too long.
func HurriedStats(ctx context.Context, t *Tables) (s QueueStats, err error) {
	reader := &statsReader{Tables: t, most: pgtype.Int8{Int64: fewCounted + 1, Valid: true}}
	for _, part := range []func(context.Context, querier, *QueueStats) error{reader.clock, reader.depth, reader.states} {
		if err == nil {
			err = part(ctx, t.conn, &s)
		}
	}
	return s, err
}

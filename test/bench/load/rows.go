package load

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// bytesPerInsert is about how much one transaction of Fill writes at most.
const bytesPerInsert = 16 << 20

// Fill writes messages from up to, not including, to, made by the server itself: so many rows in a transaction, fewer where
// they are large. After each it calls wrote, unless that is nil, with the number of the next message; the next
// transaction waits for it.
func Fill(ctx context.Context, conn *pgx.Conn, table outbox.Table, spec Spec, from, to, step int, wrote func(int)) error {
	filler := spec.Filler()
	step = max(min(step, bytesPerInsert/max(spec.Bytes, 1)), 1)
	statement := fillStatement(table, spec)
	for first := from; first < to; first += step {
		last := min(first+step, to) - 1
		if _, err := conn.Exec(ctx, statement, spec.Queues, filler, first, last); err != nil {
			return fmt.Errorf("write messages %d to %d: %w", first, last, err)
		}
		if wrote != nil {
			wrote(last + 1)
		}
	}
	return nil
}

// FillAtOnce writes them in one transaction.
func FillAtOnce(ctx context.Context, conn *pgx.Conn, table outbox.Table, spec Spec, from, to int) error {
	if _, err := conn.Exec(ctx, fillStatement(table, spec), spec.Queues, spec.Filler(), from, to-1); err != nil {
		return fmt.Errorf("write messages %d to %d: %w", from, to-1, err)
	}
	return nil
}

// fillStatement makes in SQL what Spec makes in Go.
func fillStatement(table outbox.Table, spec Spec) string {
	key := "NULL"
	if spec.Keys > 0 {
		key = fmt.Sprintf("'key-' || n %% %d", spec.Keys)
	}
	if spec.HotEvery > 0 {
		key = fmt.Sprintf("CASE WHEN n %% %d = 0 THEN '%s' ELSE %s END", spec.HotEvery, HotKey, key)
	}
	return fmt.Sprintf(`INSERT INTO %s (routing_key, ordering_key, payload)
		SELECT ($1::text[])[1 + n %% %d], %s, ('%s' || lpad(n::text, %d, '0') || '%s' || $2 || '%s')::json
		FROM generate_series($3::bigint, $4::bigint) AS n`,
		table.SQL(), len(spec.Queues), key, head, digits, strings.ReplaceAll(middle, "'", "''"), tail)
}

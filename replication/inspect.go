package replication

import (
	"context"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
)

// Inspection is what the database says of a stream, beside it.
type Inspection struct {
	// Fault is what keeps the publication from bringing every row of the table, or "".
	Fault string
	// Flushed is how far the server's WAL is written: what a stream that keeps up has
	// passed soon after.
	Flushed pglogrepl.LSN
}

// Inspect asks on an ordinary connection.
func Inspect(ctx context.Context, conn *pgconn.PgConn, names Names) (Inspection, error) {
	state, err := readPublication(ctx, conn, names)
	if err != nil {
		return Inspection{}, err
	}
	var inspection Inspection
	if faults := state.Faults(names); len(faults) > 0 {
		inspection.Fault = faults[0].Says
	}
	inspection.Flushed, err = flushedLSN(ctx, conn)
	return inspection, err
}

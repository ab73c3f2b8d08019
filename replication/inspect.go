package replication

import (
	"context"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
)

// Inspection is the state of a stream, according to the database.
type Inspection struct {
	// Fault is why the publication does not bring every row of the table, or "".
	Fault string
	// Flushed is the end of the flushed WAL. A stream that keeps up passes it soon.
	Flushed pglogrepl.LSN
}

// Inspect queries the database on an ordinary connection.
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

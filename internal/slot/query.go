package slot

import (
	"context"

	"github.com/jackc/pgx/v5/pgconn"
)

// Query runs one statement and returns its rows as text. It uses the simple protocol, the only one on a replication
// connection.
func Query(ctx context.Context, conn *pgconn.PgConn, sql string) ([][]string, error) {
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, err
	}
	var rows [][]string
	for _, result := range results {
		for _, values := range result.Rows {
			row := make([]string, len(values))
			for i, v := range values {
				row[i] = string(v)
			}
			rows = append(rows, row)
		}
	}
	return rows, nil
}

package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// selection is the rows to change, as they were at the start. It is a cursor on the server: neither side holds the rows
// in memory, and no snapshot stays open.
type selection struct {
	operator *Operator
	total    int64
}

const selectionName = "cdc_relay_selection"

// choose runs a query whose rows take returns batch by batch. The caller must close the selection.
func (o *Operator) choose(ctx context.Context, query string, args ...any) (*selection, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	err := pgx.BeginFunc(ctx, o.conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, mayScan); err != nil {
			return err
		}
		// WITH HOLD keeps the rows after the transaction.
		_, err := tx.Exec(ctx, "DECLARE "+selectionName+" SCROLL CURSOR WITH HOLD FOR "+query, args...)
		return err
	})
	if err != nil {
		return nil, err
	}
	s := &selection{operator: o}
	moved, err := o.conn.Exec(ctx, "MOVE FORWARD ALL FROM "+selectionName)
	if err == nil {
		s.total = moved.RowsAffected()
		_, err = o.conn.Exec(ctx, "MOVE ABSOLUTE 0 FROM "+selectionName)
	}
	if err != nil {
		s.close(ctx)
		return nil, err
	}
	return s, nil
}

// take returns the next rows; none: the end. The caller must finish the batch even if ctx is done, within batchTimeout,
// so that the counts are right.
func take[T any](ctx context.Context, s *selection, n int, row pgx.RowToFunc[T]) ([]T, error) {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	// Describe again, because the previous selection may have had other columns.
	rows, err := s.operator.conn.Query(ctx, fmt.Sprintf("FETCH FORWARD %d FROM %s", n, selectionName), pgx.QueryExecModeDescribeExec)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, row)
}

func (s *selection) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), glanceTimeout)
	defer cancel()
	_, _ = s.operator.conn.Exec(ctx, "CLOSE "+selectionName) // it ends with the connection anyway
}

// Progress receives how many of how many rows are done.
type Progress func(done, total int64)

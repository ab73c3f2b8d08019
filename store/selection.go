package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// selection is the rows that a change of many is about, as they were when it began: a cursor
// on the server, so that neither side holds them in memory and no snapshot is held open.
type selection struct {
	operator *Operator
	total    int64
}

const selectionName = "cdc_relay_selection"

// choose runs a query whose rows are then taken batch by batch. Close it.
func (o *Operator) choose(ctx context.Context, query string, args ...any) (*selection, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	err := pgx.BeginFunc(ctx, o.conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, mayScan); err != nil {
			return err
		}
		// WITH HOLD: the rows are kept when the transaction ends.
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

// take reads the next rows; none: that was all. What is then done with them comes to its end
// within batchTimeout, also where ctx is done meanwhile: what was changed is known.
func take[T any](ctx context.Context, s *selection, n int, row pgx.RowToFunc[T]) ([]T, error) {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	// Described again: the selection before this one may have had other columns.
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

// Progress is told how many of how many rows are done.
type Progress func(done, total int64)

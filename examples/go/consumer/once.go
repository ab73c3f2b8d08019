package main

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// once does the work of a message in a transaction, unless a message with this id was handled before. It returns
// whether it did. Acknowledge the message afterwards: if the consumer crashes before, the broker redelivers.
func once(ctx context.Context, conn *pgx.Conn, messageID string, work func(pgx.Tx) error) (did bool, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { // the inbox and the work commit together
		inbox, err := tx.Exec(ctx, "INSERT INTO inbox (message_id) VALUES ($1) ON CONFLICT DO NOTHING", messageID)
		if err != nil || inbox.RowsAffected() == 0 {
			return err
		}
		did = true
		return work(tx)
	})
	return did && err == nil, err
}

// An order and its message, with pgx.
package main

import (
	"context"
	"errors"
	"log"
	"os"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return placeOrder(ctx, tx, 42) }); err != nil {
		return err
	}

	// No order is stored and no message is sent.
	errStock := errors.New("no stock")
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		return errors.Join(placeOrder(ctx, tx, 43), errStock)
	})
	if !errors.Is(err, errStock) {
		return err
	}
	return nil
}

func placeOrder(ctx context.Context, tx pgx.Tx, orderID int) error {
	if _, err := tx.Exec(ctx, "INSERT INTO orders (id, customer) VALUES ($1, 'acme')", orderID); err != nil {
		return err
	}
	table := outbox.Table{Schema: "public", Name: "outbox"}
	return table.Enqueue(ctx, tx, outbox.NewMessage{
		RoutingKey: "orders",
		Payload:    map[string]any{"order_id": orderID, "customer": "acme"},
	})
}

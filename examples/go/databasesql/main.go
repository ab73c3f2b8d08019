// An order and its message, with database/sql.
package main

import (
	"context"
	"database/sql"
	"log"
	"os"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/cdc-relay/cdc-relay/outbox"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer db.Close()
	if err := placeOrder(ctx, db, 42, (*sql.Tx).Commit); err != nil {
		return err
	}
	return placeOrder(ctx, db, 43, (*sql.Tx).Rollback) // no order is stored and no message is sent
}

func placeOrder(ctx context.Context, db *sql.DB, orderID int, end func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // a no-op after Commit
	if _, err := tx.ExecContext(ctx, "INSERT INTO orders (id, customer) VALUES ($1, 'acme')", orderID); err != nil {
		return err
	}
	table := outbox.Table{Schema: "public", Name: "outbox"}
	err = table.EnqueueSQL(ctx, tx, outbox.NewMessage{
		RoutingKey: "orders",
		Payload:    map[string]any{"order_id": orderID, "customer": "acme"},
	})
	if err != nil {
		return err
	}
	return end(tx)
}

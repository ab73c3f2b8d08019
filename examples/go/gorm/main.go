// An order and its message, with gorm.
package main

import (
	"encoding/json"
	"errors"
	"log"
	"os"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
)

type Order struct {
	ID       int
	Customer string
}

// Outbox has no field for id: gorm would send INSERT … RETURNING id, which needs SELECT (id).
type Outbox struct {
	RoutingKey string
	Payload    json.RawMessage `gorm:"type:json"`
}

func (Outbox) TableName() string { return "outbox" }

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	db, err := gorm.Open(postgres.Open(os.Getenv("DATABASE_URL")))
	if err != nil {
		return err
	}
	if err := db.Transaction(func(tx *gorm.DB) error { return placeOrder(tx, 42) }); err != nil {
		return err
	}

	// No order is stored and no message is sent.
	errStock := errors.New("no stock")
	err = db.Transaction(func(tx *gorm.DB) error { return errors.Join(placeOrder(tx, 43), errStock) })
	if !errors.Is(err, errStock) {
		return err
	}
	return nil
}

func placeOrder(tx *gorm.DB, orderID int) error {
	if err := tx.Create(&Order{ID: orderID, Customer: "acme"}).Error; err != nil {
		return err
	}
	payload, err := json.Marshal(map[string]any{"order_id": orderID, "customer": "acme"})
	if err != nil {
		return err
	}
	return tx.Create(&Outbox{RoutingKey: "orders", Payload: payload}).Error
}

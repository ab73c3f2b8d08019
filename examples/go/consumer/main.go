// consumer COUNT receives COUNT messages, with amqp091-go and pgx.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"log"
	"os"
	"strconv"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
)

func main() {
	count, err := strconv.Atoi(os.Args[1])
	if err == nil {
		err = run(context.Background(), count)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, count int) error {
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	broker, err := amqp.Dial(os.Getenv("AMQP_URL"))
	if err != nil {
		return err
	}
	defer broker.Close()
	channel, err := broker.Channel()
	if err != nil {
		return err
	}
	if _, err := channel.QueueDeclare("orders", true, false, false, false, nil); err != nil {
		return err
	}
	if err := channel.Qos(10, 0, false); err != nil {
		return err
	}
	deliveries, err := channel.ConsumeWithContext(ctx, "orders", "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	for delivery := range deliveries {
		if err := handle(ctx, conn, delivery); err != nil {
			return err
		}
		if err := delivery.Ack(false); err != nil { // after COMMIT: if it crashes before, the broker redelivers
			return err
		}
		if count--; count == 0 {
			return nil
		}
	}
	return errors.New("the broker has closed the channel")
}

func handle(ctx context.Context, conn *pgx.Conn, delivery amqp.Delivery) error {
	var order struct {
		ID int `json:"order_id"`
	}
	if err := json.Unmarshal(delivery.Body, &order); err != nil {
		return err
	}
	_, err := once(ctx, conn, delivery.MessageId, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO parcels (order_id) VALUES ($1)", order.ID)
		return err
	})
	return err
}

// Command soak-poller is the outbox poller that many teams write themselves. It locks a batch of rows with SKIP LOCKED,
// publishes it, waits for the confirms, deletes the rows and commits. After any error it ends, and its service manager
// starts it again. The soak compares cdc-relay with it; package subject says how it is called.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	batch   = 500
	every   = 50 * time.Millisecond // between two looks at an empty table
	timeout = 10 * time.Second      // for connecting, and for a batch
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := call(ctx, os.Args[len(os.Args)-1]); err != nil {
		fmt.Fprintln(os.Stderr, "soak-poller:", err)
		os.Exit(1)
	}
}

func call(ctx context.Context, verb string) error {
	if verb == "version" {
		fmt.Println("of this repository, with pgx and amqp091-go")
		return nil
	}
	connecting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	db, err := pgx.Connect(connecting, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer func() { _ = db.Close(connecting) }()
	if verb == "setup" {
		_, err := db.Exec(connecting, `CREATE TABLE poller_outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
			message_id uuid NOT NULL, queue text NOT NULL, key text, body text NOT NULL)`)
		return err
	}
	return run(ctx, db, os.Getenv("AMQP_URL"))
}

// run polls until ctx ends. A batch that has begun is completed.
func run(ctx context.Context, db *pgx.Conn, broker string) error {
	conn, err := amqp.DialConfig(broker, amqp.Config{Dial: amqp.DefaultDial(timeout), Heartbeat: timeout})
	if err != nil {
		return err
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(timeout)) }()
	channel, err := conn.Channel()
	if err != nil {
		return err
	}
	returns := channel.NotifyReturn(make(chan amqp.Return, batch))
	if err := channel.Confirm(false); err != nil {
		return err
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for ctx.Err() == nil {
		moved, err := move(context.WithoutCancel(ctx), db, channel, returns)
		if err != nil {
			return err
		}
		if moved == batch {
			continue
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return nil
}

// move publishes a batch and deletes its rows.
func move(ctx context.Context, db *pgx.Conn, channel *amqp.Channel, returns <-chan amqp.Return) (moved int, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT id, message_id::text, queue, body FROM poller_outbox
			ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED`, batch)
		if err != nil {
			return err
		}
		ids, confirms, err := publish(rows, channel)
		if err != nil {
			return err
		}
		for _, confirm := range confirms {
			if ok, err := confirm.WaitContext(ctx); err != nil || !ok {
				return errors.Join(errors.New("a message was not confirmed"), err)
			}
		}
		if len(returns) > 0 { // the broker sends a return before its confirm
			return fmt.Errorf("no queue takes %s", (<-returns).MessageId)
		}
		moved = len(ids)
		_, err = tx.Exec(ctx, `DELETE FROM poller_outbox WHERE id = ANY($1)`, ids)
		return err
	})
	return moved, err
}

func publish(rows pgx.Rows, channel *amqp.Channel) (ids []int64, confirms []*amqp.DeferredConfirmation, err error) {
	var id int64
	var message, queue, body string
	_, err = pgx.ForEachRow(rows, []any{&id, &message, &queue, &body}, func() error {
		confirm, err := channel.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{
			ContentType: "application/json", DeliveryMode: amqp.Persistent, MessageId: message, Body: []byte(body),
		})
		ids, confirms = append(ids, id), append(confirms, confirm)
		return err
	})
	return ids, confirms, err
}

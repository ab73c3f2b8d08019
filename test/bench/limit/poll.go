package limit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/bench/load"
)

const (
	pollBatch = 500
	pollEvery = 10 * time.Millisecond
)

// poll is an optimised SKIP LOCKED poller: batches, a common wait for the confirms, one DELETE for each batch, all in
// one transaction. It ends with ctx.
func poll(ctx context.Context, order Order) error {
	broker, err := load.Dial(order.AMQPURL, "bench poll")
	if err != nil {
		return err
	}
	defer func() { _ = broker.CloseDeadline(time.Now().Add(closeTimeout)) }()
	channel, err := Open(broker, pollBatch)
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, order.Database)
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	defer closeConn(conn.PgConn())
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		moved, err := pollOnce(ctx, conn, channel, order.Table)
		if err != nil {
			if ctx.Err() != nil {
				break
			}
			return err
		}
		if moved == pollBatch {
			continue // there are more rows
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return nil
}

func pollOnce(ctx context.Context, conn *pgx.Conn, channel *Channel, table string) (moved int, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT id, message_id::text, routing_key, payload::text, created_at FROM `+table+
			` ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED`, pollBatch)
		if err != nil {
			return err
		}
		ids, confirms, err := publishRows(rows, channel)
		if err != nil {
			return err
		}
		for _, confirm := range confirms {
			if err := channel.Await(confirm); err != nil {
				return err
			}
		}
		if moved = len(ids); moved == 0 {
			return nil
		}
		_, err = tx.Exec(ctx, `DELETE FROM `+table+` WHERE id = ANY($1)`, ids)
		return err
	})
	return moved, err
}

func publishRows(rows pgx.Rows, channel *Channel) (ids []int64, confirms []*amqp.DeferredConfirmation, err error) {
	defer rows.Close()
	for rows.Next() {
		var id int64
		var messageID, routingKey string
		var payload []byte
		var created time.Time
		if err := rows.Scan(&id, &messageID, &routingKey, &payload, &created); err != nil {
			return nil, nil, err
		}
		confirm, err := channel.PublishWithDeferredConfirm("", routingKey, true, false, amqp.Publishing{
			ContentType:  "application/json",
			DeliveryMode: amqp.Persistent,
			MessageId:    messageID,
			Timestamp:    created,
			Body:         payload,
		})
		if err != nil {
			return nil, nil, err
		}
		ids, confirms = append(ids, id), append(confirms, confirm)
	}
	return ids, confirms, errors.Join(rows.Err())
}

package demo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

// order is one message of the demo.
type order struct {
	id              int64
	messageID, text string
	// committing is the time just before COMMIT was sent.
	committing time.Time
}

// insert inserts an order as an application would.
func (d *demo) insert(ctx context.Context) error {
	things := []string{"sencha tea", "oat biscuits", "wool blanket", "bicycle bell", "blue ink", "chess set"}
	people := []string{"Ada in Lisbon", "Bram in Ghent", "Deniz in Izmir", "Fatou in Dakar", "Hiro in Osaka"}
	o := order{text: fmt.Sprintf("%d × %s for %s",
		1+rand.IntN(5), things[rand.IntN(len(things))], people[rand.IntN(len(people))])}
	// An interrupt must not cancel the transaction: nobody would know whether it was committed.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), serverTimeout)
	defer cancel()
	err := pgx.BeginFunc(ctx, d.Conn, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, "INSERT INTO "+d.Table.SQL()+` (exchange, routing_key, payload, properties)
			VALUES ('', $1, pg_catalog.json_build_object('order', $2::text), '{"type": "demo.order"}')
			RETURNING id, message_id::text`, d.queue, o.text).Scan(&o.id, &o.messageID)
		o.committing = time.Now()
		return err
	})
	if err != nil {
		return fmt.Errorf("insert an order: %w", err)
	}
	if d.sent++; d.sent == 1 {
		d.first = o.id
	}
	if len(d.pending) == 0 {
		d.latest = time.Now()
	}
	d.pending[o.messageID] = o
	return nil
}

// remove deletes the rows that are left of the demo, and returns why RabbitMQ rejected one of them, if it did. No other
// rows have the name of its queue.
func (d *demo) remove(ctx context.Context) (rejection string, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	const these = " WHERE id >= $1 AND routing_key = $2 RETURNING last_error"
	err = d.Conn.QueryRow(ctx, `WITH waiting AS (DELETE FROM `+d.Table.SQL()+these+`),
		dead AS (DELETE FROM `+d.Table.DeadLetter().SQL()+these+`)
		SELECT COALESCE(pg_catalog.left(pg_catalog.max(last_error), 300), '')
		FROM (TABLE waiting UNION ALL TABLE dead) AS removed`, d.first, d.queue).Scan(&rejection)
	return rejection, err
}

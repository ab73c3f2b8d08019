package demo

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	mathrand "math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/grants"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// sentOrder is one message of the demo.
type sentOrder struct {
	id        int64
	messageID outbox.UUID
	text      string
	// committing is the time just before COMMIT was sent.
	committing time.Time
}

// inserter inserts orders as an application would.
type inserter struct {
	conn  *pgx.Conn
	table outbox.Table
	queue string
}

// explained adds the GRANT that the role lacks.
func (i inserter) explained(err error) error {
	if !pgcode.Is(err, pgerrcode.InsufficientPrivilege) {
		return err
	}
	role := outbox.QuoteIdentifier(i.conn.Config().User)
	var missing []string
	for _, g := range grants.App(i.table, outbox.Table{}, false) {
		missing = append(missing, g.To(role)+";")
	}
	return failure.WithHint(err, strings.Join(missing, " ")+"  -- or use another role in --database-url")
}

// insert inserts count orders, or orders until ctx is done if count is 0. It sends each committed order to inserted.
func (i inserter) insert(ctx context.Context, rate float64, count int, inserted chan<- sentOrder) error {
	ticker := time.NewTicker(time.Duration(float64(time.Second) / rate))
	defer ticker.Stop()
	for n := 1; ; n++ {
		order, err := i.insertOne(ctx)
		if err != nil {
			return i.explained(fmt.Errorf("insert an order: %w", err))
		}
		inserted <- order // run receives all orders, also after an interrupt
		if n == count {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (i inserter) insertOne(ctx context.Context) (sentOrder, error) {
	order := sentOrder{text: randomOrder()}
	rand.Read(order.messageID[:])
	order.messageID[6] = order.messageID[6]&0x0f | 0x40 // version 4: a random UUID
	order.messageID[8] = order.messageID[8]&0x3f | 0x80
	payload, err := json.Marshal(map[string]string{"order": order.text})
	if err != nil {
		return order, err
	}
	// An interrupt must not cancel the transaction: nobody would know whether it was committed.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), serverTimeout)
	defer cancel()
	tx, err := i.conn.Begin(ctx)
	if err != nil {
		return order, err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // a no-op after COMMIT
	err = tx.QueryRow(ctx, "INSERT INTO "+i.table.SQL()+` (message_id, exchange, routing_key, payload, properties)
		VALUES ($1, '', $2, $3, '{"type": "demo.order"}') RETURNING id`,
		order.messageID.String(), i.queue, string(payload)).Scan(&order.id)
	if err != nil {
		return order, err
	}
	order.committing = time.Now()
	return order, tx.Commit(ctx)
}

// these is the condition for rows of identify.
const these = " WHERE id = ANY ($1) AND message_id = ANY ($2::uuid[])"

func identify(orders map[outbox.UUID]sentOrder) (ids []int64, messageIDs []string) {
	for _, order := range orders {
		ids, messageIDs = append(ids, order.id), append(messageIDs, order.messageID.String())
	}
	return ids, messageIDs
}

func (i inserter) remove(ctx context.Context, orders map[outbox.UUID]sentOrder) error {
	ids, messageIDs := identify(orders)
	for _, table := range []outbox.Table{i.table, i.table.DeadLetter()} {
		if _, err := i.conn.Exec(ctx, "DELETE FROM "+table.SQL()+these, ids, messageIDs); err != nil {
			return err
		}
	}
	return nil
}

// rejection returns why RabbitMQ rejected one of the orders; "": it did not, or the role may not read that.
func (i inserter) rejection(ctx context.Context, orders map[outbox.UUID]sentOrder) (text string) {
	ids, messageIDs := identify(orders)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	err := i.conn.QueryRow(ctx, `SELECT pg_catalog.left(last_error, 300) FROM `+i.table.SQL()+these+`
		AND last_error IS NOT NULL LIMIT 1`, ids, messageIDs).Scan(&text)
	if err != nil {
		return ""
	}
	return show.Printable(text)
}

func randomOrder() string {
	things := []string{
		"sencha tea", "oat biscuits", "wool blanket", "candles", "bicycle bell", "sunflower seeds",
		"blue ink", "chess set", "olive oil", "concert ticket", "cast iron pan", "guitar strings",
	}
	people := []string{
		"Ada in Lisbon", "Bram in Ghent", "Chiara in Turin", "Deniz in Izmir", "Eero in Oulu", "Fatou in Dakar",
		"Grace in Leeds", "Hiro in Osaka", "Ines in Porto", "Jan in Gdansk", "Kavya in Pune", "Lena in Graz",
	}
	thing, person := things[mathrand.IntN(len(things))], people[mathrand.IntN(len(people))]
	return fmt.Sprintf("%d × %s for %s", 1+mathrand.IntN(5), thing, person)
}

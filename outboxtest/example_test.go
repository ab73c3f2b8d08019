package outboxtest_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/outboxtest"
	"github.com/cdc-relay/cdc-relay/relay"
)

// confirmOrder is what the tests of the examples are about.
func confirmOrder(ctx context.Context, tx outbox.PgxExecer, orderID int) error {
	if _, err := tx.Exec(ctx, "UPDATE orders SET confirmed = true WHERE id = $1", orderID); err != nil {
		return err
	}
	table := outbox.Table{Schema: "public", Name: "outbox"}
	return table.Enqueue(ctx, tx, outbox.NewMessage{RoutingKey: "orders.confirmed", Payload: map[string]int{"order_id": orderID}})
}

// Without a database.
func ExampleRecorder() {
	var tx outboxtest.Recorder
	if err := confirmOrder(context.Background(), &tx, 42); err != nil {
		fmt.Println(err)
	}
	for _, m := range tx.Messages() {
		fmt.Printf("%s %s\n", m.RoutingKey, m.Payload)
	}
	// Output: orders.confirmed {"order_id":42}
}

// In a transaction on a test database, which is rolled back.
func ExampleEnqueued() {
	_ = func(t *testing.T, conn *pgx.Conn) {
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.Background()) }()
		if err := confirmOrder(t.Context(), tx, 42); err != nil {
			t.Fatal(err)
		}
		sent := outboxtest.Enqueued(t, tx)
		if len(sent) != 1 || sent[0].RoutingKey != "orders.confirmed" || string(sent[0].Payload) != `{"order_id":42}` {
			t.Errorf("sent: %+v", sent)
		}
	}
}

// A relay that publishes what waits in a test database, without a broker.
func ExamplePublisher() {
	_ = func(t *testing.T, databaseURL string) {
		config := relay.DefaultConfig()
		config.DatabaseURL, config.Mode = databaseURL, relay.ModePoll
		publisher := outboxtest.NewPublisher(nil)
		r, err := relay.New(config, publisher, slog.Default(), prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := len(publisher.Messages()); n != 1 {
			t.Errorf("%d messages were published", n)
		}
	}
}

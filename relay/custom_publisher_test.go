package relay_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/internal/services"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/relay"
)

// The example's publisher fulfils the contract of publish.Publisher.
func TestACustomPublisherFulfilsTheContract(t *testing.T) {
	config := relay.DefaultConfig()
	config.DatabaseURL, config.Mode, config.MaxRetries = services.Database(t), relay.ModePoll, 0
	config.PollInterval = 20 * time.Millisecond
	conn, err := pgx.Connect(t.Context(), config.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, _, err := migrations.Up(t.Context(), conn, config.Table); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a", "b", "never", "c"} {
		err := config.Table.Enqueue(t.Context(), conn, outbox.NewMessage{RoutingKey: key, OrderingKey: "k", Payload: key})
		if err != nil {
			t.Fatal(err)
		}
	}
	arrived := make(chan string, 10)
	dead := make(chan relay.Event, 10)
	config.Hooks.DeadLettered = func(e relay.Event) { dead <- e }
	publisher := newFuncPublisher(config.MaxInFlight, func(m *outbox.Message) error {
		if m.RoutingKey == "never" {
			return errors.New("not this one")
		}
		arrived <- m.RoutingKey
		return nil
	})
	r, err := relay.New(config, publisher, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	var got []string
	for range 3 {
		got = append(got, <-arrived)
	}
	if !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("arrived: %v", got)
	}
	if e := <-dead; e.RoutingKey != "never" || e.LastError != "rejected: not this one" {
		t.Errorf("dead letter: %+v", e)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	var left int
	if err := conn.QueryRow(context.Background(), `SELECT count(*) FROM outbox`).Scan(&left); err != nil || left != 0 {
		t.Errorf("%d rows are left, %v", left, err)
	}
}

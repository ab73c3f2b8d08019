package relay_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/relay"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// The example's publisher fulfils the contract of publish.Publisher.
func TestACustomPublisherFulfilsTheContract(t *testing.T) {
	tables := tabletest.New(t)
	config := relay.DefaultConfig()
	config.DatabaseURL, config.MaxRetries = tables.URL, 0
	for _, key := range []string{"a", "b", "never", "c"} {
		err := config.Table.Enqueue(t.Context(), tables.Conn, outbox.NewMessage{RoutingKey: key, OrderingKey: "k", Payload: key})
		services.Must(t, err)
	}
	var arrived []string
	dead := make(chan relay.Event, 10)
	config.Hooks.DeadLettered = func(e relay.Event) { dead <- e }
	publisher := newFuncPublisher(config.MaxInFlight, func(m *outbox.Message) error {
		if m.RoutingKey == "never" {
			return errors.New("not this one")
		}
		arrived = append(arrived, m.RoutingKey)
		return nil
	})
	r, err := relay.New(config, publisher, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	services.Must(t, err)
	services.Must(t, r.Drain(context.WithoutCancel(t.Context())))
	if !slices.Equal(arrived, []string{"a", "b", "c"}) {
		t.Errorf("arrived: %v", arrived)
	}
	if e := <-dead; e.RoutingKey != "never" || e.LastError != "rejected: not this one" {
		t.Errorf("dead letter: %+v", e)
	}
	if left := tables.IDs("true"); len(left) > 0 {
		t.Errorf("rows %v are left", left)
	}
}

package load

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/publish/amqp"
	"github.com/cdc-relay/cdc-relay/relay"
	"github.com/cdc-relay/cdc-relay/replication"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

// runRelay runs a relay until the test ends or stop is called.
func runRelay(t *testing.T, state State, conn *pgx.Conn, broker string) (stop func()) {
	t.Helper()
	config := relay.DefaultConfig()
	config.DatabaseURL, config.Table = state.DatabaseURL, state.Table
	config.Slot = services.Name(t)
	config.Publication = config.Slot
	config.MaxRetries, config.BackoffTime, config.MaxBackoff = 1, 100*time.Millisecond, time.Second
	names := replication.Names{Table: config.Table, Publication: config.Publication, Slot: config.Slot}
	if _, err := replication.Setup(t.Context(), conn.PgConn(), names, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	publisher, err := amqp.New(amqp.Config{
		URL: broker, MaxInFlight: config.MaxInFlight, SendTimeout: config.SendTimeout, OutageCooldown: time.Second, Logger: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := relay.New(config, publisher, log, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	stop = func() {
		if cancel == nil {
			return
		}
		cancel()
		cancel = nil
		if err := <-ended; err != nil {
			t.Errorf("the relay: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// A run without faults: everything written arrives as written, or is where it belongs.
func TestTrafficThroughARelayArrives(t *testing.T) {
	t.Parallel()
	state, conn := database(t)
	broker := services.VHost(t)
	opts := options(state)
	opts.Topology, opts.Rate = DefaultTopology(services.Name(t)), 800
	for range 2 { // the second call changes nothing
		if err := Declare(t.Context(), broker, opts.Topology); err != nil {
			t.Fatal(err)
		}
	}
	var told bytes.Buffer
	recorder := history.NewRecorder(&told, history.Run{Seed: 1})
	if err := Backlog(t.Context(), opts, 2000, recorder); err != nil {
		t.Fatal(err)
	}
	stopRelay := runRelay(t, state, conn, broker)
	consumers := StartConsumers(t.Context(), ConsumerOptions{AMQPURLs: []string{broker}, Topology: opts.Topology}, recorder)
	defer consumers.Stop()
	writers, err := StartWriters(t.Context(), opts, recorder)
	if err != nil {
		t.Fatal(err)
	}
	defer writers.Stop()
	await.Until(t, "6000 messages are acknowledged", func() bool { return recorder.Counts().Acknowledged > 6000 })
	writers.Stop()
	if err := state.AwaitDrained(t.Context(), 30*time.Second, nil); err != nil {
		t.Fatal(err)
	}
	if err := AwaitEmptyQueues(t.Context(), broker, opts.Topology); err != nil {
		t.Fatal(err)
	}
	stopRelay()
	consumers.Stop()
	if err := state.Record(t.Context(), recorder); err != nil {
		t.Fatal(err)
	}
	if err := recorder.Close(); err != nil {
		t.Fatal(err)
	}
	verdict, err := history.Check(bytes.NewReader(told.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if !verdict.Passed() || verdict.Counters.DeadLettered == 0 || verdict.Counters.Redelivered > 0 {
		var text bytes.Buffer
		_ = verdict.WriteText(&text)
		t.Errorf("%s", &text)
	}
	if err := Delete(t.Context(), broker, opts.Topology); err != nil {
		t.Error(err)
	}
}

// seen passes arrivals to a channel.
type seen chan history.Delivery

func (s seen) Delivered(d history.Delivery) { s <- d }

// Consumers return to a queue that was deleted, and to a broker that closed their connection or froze.
func TestConsumersReconnect(t *testing.T) {
	t.Parallel()
	broker := services.PrivateRabbitMQ(t)
	topology := Topology{Prefix: "soak", Plain: 1, Keyed: 1}
	declare := func() {
		t.Helper()
		if err := Declare(t.Context(), broker.URL(""), topology); err != nil {
			t.Fatal(err)
		}
	}
	arrivals := make(seen, 100)
	var consumers *Consumers
	comes := func(when string) {
		t.Helper()
		err := onChannel(t.Context(), broker.URL(""), func(channel *amqp091.Channel) error {
			return channel.PublishWithContext(t.Context(), "", topology.Queues()[0], false, false, amqp091.Publishing{Body: []byte("x")})
		})
		if err != nil {
			t.Fatal(err)
		}
		d := await.Receive(t, "an arrival "+when, arrivals, func() string { return fmt.Sprintf("%+v", consumers.Trouble.Seen()) })
		if d.Damaged == "" || d.Queue != topology.Queues()[0] {
			t.Errorf("%+v", d)
		}
	}
	declare()
	consumers = StartConsumers(t.Context(), ConsumerOptions{AMQPURLs: []string{broker.URL("")}, Topology: topology}, arrivals)
	defer consumers.Stop()
	comes("at first")

	if err := Delete(t.Context(), broker.URL(""), topology); err != nil {
		t.Fatal(err)
	}
	declare()
	comes("after the queue was deleted")

	errors := consumers.Trouble.Seen().Count
	if err := broker.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "a consumer notices", func() bool { return consumers.Trouble.Seen().Count > errors })
	if err := broker.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	comes("after the broker was frozen")

	if err := broker.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := broker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	comes("after the broker was killed")
}

// The error names the rows that stay.
func TestAwaitDrainedNamesRemainingRows(t *testing.T) {
	state, conn := database(t)
	_, err := conn.Exec(t.Context(), `INSERT INTO outbox (routing_key, ordering_key, payload, attempts, last_error) VALUES ('a', 'my key', '1', 3, 'nack: no')`)
	if err != nil {
		t.Fatal(err)
	}
	err = state.AwaitDrained(t.Context(), 300*time.Millisecond, nil)
	if err == nil {
		t.Fatal("it reports an empty outbox")
	}
	for _, want := range []string{"1 rows wait", "my key", "3 attempts", "nack: no"} {
		if !bytes.Contains([]byte(err.Error()), []byte(want)) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

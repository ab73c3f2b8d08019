package notice

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish/amqp"
	"github.com/cdc-relay/cdc-relay/relay"
	"github.com/cdc-relay/cdc-relay/test/services"
)

func TestMain(m *testing.M) { services.Main(m) }

func must(t testing.TB, err error) { t.Helper(); services.Must(t, err) }

// running starts notices to an exchange; stop ends them.
func running(t *testing.T, url, exchange string, log *slog.Logger) (n *Notices, stop func()) {
	t.Helper()
	publisher, err := amqp.New(amqp.Config{URL: url, MaxInFlight: MaxInFlight, Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	n, err = New(publisher, exchange, "usual", log, prometheus.NewRegistry())
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	return n, func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func wantCount(t *testing.T, n *Notices, outcome string, want float64) {
	t.Helper()
	var m dto.Metric
	must(t, n.counts.WithLabelValues("dead_lettered", outcome).Write(&m))
	if got := m.GetCounter().GetValue(); got != want {
		t.Errorf("%v were %s, want %v", got, outcome, want)
	}
}

func graveyard(t *testing.T, url string) (exchange string, deliveries <-chan amqp091.Delivery) {
	t.Helper()
	conn := services.DialAMQP(t, url)
	channel, err := conn.Channel()
	must(t, err)
	exchange = services.Name(t)
	must(t, channel.ExchangeDeclare(exchange, "topic", false, true, false, false, nil))
	queue, err := channel.QueueDeclare("", false, false, true, false, nil)
	must(t, err)
	must(t, channel.QueueBind(queue.Name, "#", exchange, false, nil))
	deliveries, err = channel.Consume(queue.Name, "", true, true, false, false, nil)
	must(t, err)
	return exchange, deliveries
}

func deadLettered() relay.Event {
	return relay.Event{
		ID: 7, MessageID: outbox.UUID{0: 1, 15: 2}, RoutingKey: "orders.created", Reason: outbox.ReasonRetriesExceeded,
		LastError: "unroutable: no queue", Attempts: 6, At: time.Date(2030, 1, 2, 3, 4, 5, 6000, time.FixedZone("", 3600)),
	}
}

func TestANoticeDescribesTheDeadLetter(t *testing.T) {
	url := services.VHost(t)
	exchange, deliveries := graveyard(t, url)
	n, stop := running(t, url, exchange, slog.New(slog.DiscardHandler))
	n.Hook(DeadLettered)(deadLettered()) // before there is a connection
	d := <-deliveries
	const want = `{"event":"dead_lettered","id":7,"message_id":"01000000-0000-0000-0000-000000000002","exchange":"usual","routing_key":"orders.created",` +
		`"reason":"retries_exhausted","last_error":"unroutable: no queue","attempts":6,"at":"2030-01-02T02:04:05.000006Z","possible_duplicate":false}`
	if string(d.Body) != want {
		t.Errorf("got\n%s\nwant\n%s", d.Body, want)
	}
	if d.RoutingKey != "orders.created" || d.MessageId != "01000000-0000-0000-0000-000000000002" || d.Type != "dead_lettered" ||
		d.ContentType != "application/json" || len(d.Headers) != 0 {
		t.Errorf("got %+v", d)
	}
	long, shop := deadLettered(), "shop"
	long.RoutingKey, long.Exchange = strings.Repeat("é", 200), &shop
	n.Hook(DeadLettered)(long)
	d = <-deliveries
	var body struct {
		Exchange   string
		RoutingKey string `json:"routing_key"`
	}
	if err := json.Unmarshal(d.Body, &body); err != nil || body.Exchange != shop || body.RoutingKey != long.RoutingKey[:254] || d.RoutingKey != long.RoutingKey[:254] {
		t.Errorf("of a routing key that is too long: %+v, %v", d, err)
	}
	stop()
	wantCount(t, n, "confirmed", 2)
}

func TestUndeliverableNoticesAreCountedAndLoggedWithAHint(t *testing.T) {
	var log bytes.Buffer
	n, stop := running(t, services.VHost(t), "no such exchange", slog.New(slog.NewTextHandler(&log, nil)))
	for range 10 {
		n.Hook(DeadLettered)(deadLettered())
	}
	stop() // waits for notices in flight
	wantCount(t, n, "rejected", 10)
	if text := log.String(); !strings.Contains(text, "event=notice_lost") || !strings.Contains(text, "hint=\"cdc-relay check --events-exchange 'no such exchange'") {
		t.Errorf("the log has %s", text)
	}
	n.inFlight.Store(MaxInFlight)
	n.Hook(DeadLettered)(deadLettered())
	wantCount(t, n, "dropped", 1)
}

package load

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
)

func TestMain(m *testing.M) { services.Main(m) }

func testTable() outbox.Table { return outbox.Table{Schema: "public", Name: "outbox"} }

func testConn(t *testing.T) (url string, conn *pgx.Conn) {
	t.Helper()
	url = services.Database(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, _, err := migrations.Up(t.Context(), conn, testTable()); err != nil {
		t.Fatal(err)
	}
	return url, conn
}

// They write every message once, and none early.
func TestWritersKeepTheirPace(t *testing.T) {
	url, conn := testConn(t)
	spec := Spec{Bytes: MinBytes, Queues: []string{"q"}}
	writers, err := OpenWriters(t.Context(), url, 3, testTable(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer writers.Close()
	if len(writers.PIDs()) != 3 {
		t.Errorf("processes %v", writers.PIDs())
	}
	const from, to, rate = 10, 60, 500
	arrivals := NewArrivals(to)
	began := time.Now()
	err = writers.Write(t.Context(), from, to, rate, func(n int, at time.Time) error {
		if due := began.Add(time.Duration(float64(n-from) / rate * float64(time.Second))); at.Before(due) {
			t.Errorf("message %d arrived %s early", n, due.Sub(at))
		}
		arrivals.Committed(n, at)
		arrivals.arrivedAt(n, at.Add(time.Millisecond))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	latencies := arrivals.Latencies(from)
	if len(latencies) != to-from || latencies[0].Message != from || latencies[0].Took != time.Millisecond {
		t.Errorf("%d latencies, the first %+v", len(latencies), latencies[0])
	}
	var rows int
	if err := conn.QueryRow(t.Context(), `SELECT count(DISTINCT payload::text) FROM outbox`).Scan(&rows); err != nil || rows != to-from {
		t.Errorf("%d rows, %v", rows, err)
	}
}

func TestAConsumerRecordsArrivals(t *testing.T) {
	broker, queue := services.VHost(t), services.Name(t)
	spec := Spec{Bytes: 100, Queues: []string{queue}}
	const count = 1000
	arrivals := NewArrivals(count)
	consumer, err := Consume(t.Context(), broker, spec, arrivals)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := Dial(broker, t.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	channel, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	for n := range count + 1 { // the first one twice
		if err := channel.Publish("", queue, true, false, amqp.Publishing{Body: spec.Body(n%count, spec.Filler())}); err != nil {
			t.Fatal(err)
		}
	}
	<-arrivals.All()
	if arrivals.Count() != count || arrivals.First().IsZero() || arrivals.Last().Before(arrivals.First()) {
		t.Errorf("%d arrived, from %s to %s", arrivals.Count(), arrivals.First(), arrivals.Last())
	}
	for arrivals.Duplicates() == 0 && t.Context().Err() == nil {
		runtime.Gosched() // the last one is in flight
	}
	if err := consumer.Close(); err != nil {
		t.Error(err)
	}
	if err := Delete(broker, spec.Queues); err != nil {
		t.Error(err)
	}
}

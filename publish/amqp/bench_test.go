package amqp

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// windowSink keeps a bounded number of messages in flight.
type windowSink struct {
	tokens chan struct{}
	ready  chan struct{}
	once   sync.Once
	failed chan outbox.Result
}

func (s *windowSink) Deliver(r outbox.Result) {
	if r.Outcome != outbox.Confirmed {
		select {
		case s.failed <- r:
		default:
		}
	}
	s.tokens <- struct{}{}
}

func (s *windowSink) StateChanged(state publish.State) {
	if state.Phase == publish.Ready {
		s.once.Do(func() { close(s.ready) })
	}
}

// Publishes persistent messages of 200 bytes, all confirmed.
func BenchmarkAMQP(b *testing.B) {
	url := services.VHost(b)
	connection := services.DialAMQP(b, url)
	channel, err := connection.Channel()
	if err != nil {
		b.Fatal(err)
	}
	queue, err := channel.QueueDeclare(services.Name(b), true, false, false, false, amqp091.Table{"x-max-length": int32(1000)})
	if err != nil {
		b.Fatal(err)
	}
	const window = 2000
	p, err := New(Config{URL: url, MaxInFlight: window, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	sink := &windowSink{tokens: make(chan struct{}, window), ready: make(chan struct{}), failed: make(chan outbox.Result, 1)}
	for range window {
		sink.tokens <- struct{}{}
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(ctx, sink) }()
	<-sink.ready
	payload := fmt.Appendf(nil, `{"filler": "%0180d"}`, 1)
	b.ReportAllocs()
	for b.Loop() {
		<-sink.tokens
		p.Publish(&outbox.Message{Row: outbox.Row{RoutingKey: queue.Name, SchemaVersion: 1, Payload: payload, CreatedAt: time.Now()}})
	}
	for range window {
		<-sink.tokens
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	cancel()
	<-done
	select {
	case r := <-sink.failed:
		b.Errorf("%v %s", r.Outcome, r.Detail)
	default:
	}
}

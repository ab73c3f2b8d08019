package amqp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/test/bench/chart"
	"github.com/cdc-relay/cdc-relay/test/bench/load"
	"github.com/cdc-relay/cdc-relay/test/services"
)

const (
	// benchInFlight is more than any window.
	benchInFlight = 6000
	// benchRun is how long one run publishes. The second half shows the window that was found.
	benchRun = 8 * time.Second
)

// benchKind is a kind of broker whose best window is sought.
type benchKind struct {
	name     string
	title    string
	queues   []string      // the type of each
	distance time.Duration // the time there and back
	fsync    time.Duration // what each fsync takes longer
}

var benchKinds = []benchKind{
	{name: "classic", title: "A classic queue", queues: []string{"classic"}},
	{name: "quorum", title: "A quorum queue", queues: []string{"quorum"}},
	{name: "stream", title: "A stream", queues: []string{"stream"}},
	{name: "mixed", title: "A classic and a quorum queue", queues: []string{"classic", "quorum"}},
	{name: "four", title: "Four classic queues", queues: []string{"classic", "classic", "classic", "classic"}},
	{name: "1ms", title: "A classic queue, round trip of 1 ms", queues: []string{"classic"}, distance: time.Millisecond},
	{name: "20ms", title: "A classic queue, round trip of 20 ms", queues: []string{"classic"}, distance: 20 * time.Millisecond},
	{name: "80ms", title: "A classic queue, round trip of 80 ms", queues: []string{"classic"}, distance: 80 * time.Millisecond},
	{name: "fsync", title: "A quorum queue, 10 ms for an fsync", queues: []string{"quorum"}, fsync: 10 * time.Millisecond},
}

// Compares the window that the throttle finds with fixed ones, in turns. An iteration is a run with each of them, so use
// -benchtime 5x. The metrics are medians of messages a second in the second half of the runs. With CDC_RELAY_CHARTS it
// writes a chart of each kind into that folder.
func BenchmarkWindow(b *testing.B) {
	for _, kind := range benchKinds {
		b.Run(kind.name, func(b *testing.B) {
			bed := newBed(b, kind)
			rates := make(map[int][]float64)
			sizes := []int{0, 200, 400, 1000, 2000, 5000}
			for b.Loop() {
				for _, size := range sizes {
					rates[size] = append(rates[size], bed.run(b, size))
				}
			}
			for _, size := range sizes {
				slices.Sort(rates[size])
				b.Logf("%s, window %d (0: found): %.0f", kind.name, size, rates[size])
				b.ReportMetric(rates[size][len(rates[size])/2], fmt.Sprintf("@%d", size))
			}
			b.ReportMetric(0, "ns/op")
			if folder := os.Getenv("CDC_RELAY_CHARTS"); folder != "" {
				writeChart(b, filepath.Join(folder, "window-"+kind.name+".svg"), kind.chart(rates))
			}
		})
	}
}

// chart draws the medians: fixed windows as a line, and the found one as a limit across it. The rates are sorted, and
// those of window 0 are of the found one.
func (k benchKind) chart(rates map[int][]float64) chart.Lines {
	fixed := chart.Line{Name: "fixed window"}
	for size, of := range rates {
		if size > 0 {
			fixed.Points = append(fixed.Points, chart.Point{X: float64(size), Y: of[len(of)/2]})
		}
	}
	slices.SortFunc(fixed.Points, func(a, b chart.Point) int { return cmp.Compare(a.X, b.X) })
	found := chart.Line{Name: "found window", Dashed: true}
	for _, end := range []chart.Point{fixed.Points[0], fixed.Points[len(fixed.Points)-1]} {
		found.Points = append(found.Points, chart.Point{X: end.X, Y: rates[0][len(rates[0])/2]})
	}
	return chart.Lines{
		Title: k.title, X: chart.Axis{Label: "unconfirmed messages", Scale: chart.Log},
		Y: chart.Axis{Label: "confirms a second"}, Lines: []chart.Line{fixed, found},
	}
}

func writeChart(b *testing.B, name string, c chart.Lines) {
	file, err := os.Create(name)
	if err == nil {
		err = errors.Join(c.Write(file), file.Close())
	}
	if err != nil {
		b.Error(err)
	}
}

// bed is a broker with queues and consumers.
type bed struct {
	url  string // of the publisher
	keys []string
}

func newBed(b *testing.B, kind benchKind) *bed {
	broker := services.PrivateRabbitMQ(b)
	if kind.fsync > 0 {
		slowDisk(b, broker, kind.fsync)
	}
	made := &bed{url: broker.URL("")}
	connection := services.DialAMQP(b, made.url)
	for i, queueType := range kind.queues {
		key := fmt.Sprintf("%s.%d", queueType, i)
		channel, err := connection.Channel()
		if err != nil {
			b.Fatal(err)
		}
		args := amqp091.Table{amqp091.QueueTypeArg: queueType}
		if _, err := channel.QueueDeclare(key, true, false, false, false, args); err != nil {
			b.Fatal(err)
		}
		if err := channel.QueueBind(key, key, "amq.direct", false, nil); err != nil {
			b.Fatal(err)
		}
		if queueType != amqp091.QueueTypeStream {
			consume(b, channel, key)
		}
		made.keys = append(made.keys, key)
	}
	if kind.distance > 0 {
		proxy := services.NewProxy(b, broker.Addr())
		proxy.Delay(kind.distance / 2)
		made.url = strings.Replace(made.url, broker.Addr(), proxy.Addr(), 1)
	}
	return made
}

// consume acknowledges many messages together, until the connection is closed.
func consume(b *testing.B, channel *amqp091.Channel, queue string) {
	if err := channel.Qos(2000, 0, false); err != nil {
		b.Fatal(err)
	}
	deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		b.Fatal(err)
	}
	go func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		var waiting int
		var newest uint64
		for {
			select {
			case d, ok := <-deliveries:
				if !ok {
					return
				}
				if waiting, newest = waiting+1, d.DeliveryTag; waiting < 500 {
					continue
				}
			case <-tick.C:
			}
			if waiting > 0 {
				_ = channel.Ack(newest, true)
				waiting = 0
			}
		}
	}()
}

// benchSink gives a token back for each result.
type benchSink struct {
	tokens    chan struct{}
	confirmed atomic.Int64
}

func (s *benchSink) Deliver(r outbox.Result) {
	if r.Outcome == outbox.Confirmed {
		s.confirmed.Add(1)
	}
	s.tokens <- struct{}{}
}

func (s *benchSink) StateChanged(publish.State) {}

// run publishes with a fixed window, or with 0 the one that is found, and returns the rate of the second half.
func (bed *bed) run(b *testing.B, size int) float64 {
	p, err := New(Config{
		URL: bed.url, MaxInFlight: benchInFlight, DefaultExchange: "amq.direct", SendTimeout: time.Minute,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		b.Fatal(err)
	}
	sink := &benchSink{tokens: make(chan struct{}, benchInFlight)}
	for range benchInFlight {
		sink.tokens <- struct{}{}
	}
	p.inbox.Sink = sink
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	o, err := p.dial(ctx)
	if err != nil {
		b.Fatal(err)
	}
	s := newSession(p, o)
	s.throttle = newThrottle(newSendWindow(cmp.Or(size, smallestWindow), cmp.Or(size, benchInFlight)))
	done := make(chan struct{})
	go func() { defer close(done); p.serve(ctx, s); p.inbox.End() }()

	payload := load.Spec{Bytes: 300}.Body(0, load.Spec{Bytes: 300}.Filler())
	began, half, before := time.Now(), time.Time{}, int64(0)
	for n := 0; time.Since(began) < benchRun; n++ {
		<-sink.tokens
		now := time.Now()
		if half.IsZero() && now.Sub(began) > benchRun/2 {
			half, before = now, sink.confirmed.Load()
		}
		p.Publish(&outbox.Message{
			Row:     outbox.Row{RoutingKey: bed.keys[n%len(bed.keys)], SchemaVersion: 1, Payload: payload, CreatedAt: now},
			TakenAt: now,
		})
	}
	rate := float64(sink.confirmed.Load()-before) / time.Since(half).Seconds()
	for range benchInFlight {
		<-sink.tokens
	}
	if size == 0 {
		s.throttle.mu.Lock()
		b.Logf("found a window of %d", s.throttle.window.base)
		s.throttle.mu.Unlock()
	}
	cancel()
	<-done
	return rate
}

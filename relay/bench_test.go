package relay

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
)

// benchWindow is how many messages are in flight in the benchmarks: --max-in-flight by default.
const benchWindow = 2000

func benchMessages(keys int) []*outbox.Message {
	messages := make([]*outbox.Message, benchWindow)
	for i := range messages {
		m := &outbox.Message{ID: int64(i + 1), RoutingKey: "orders.created", Payload: make([]byte, 300), SchemaVersion: 1}
		m.MessageID[0], m.MessageID[1] = byte(i), byte(i>>8)
		if keys > 0 {
			key := fmt.Sprintf("order-%d", i%keys)
			m.OrderingKey = &key
		}
		messages[i] = m
	}
	return messages
}

// BenchmarkRegistry takes a row in, marks it and settles it.
func BenchmarkRegistry(b *testing.B) {
	r := newRegistry(200_000)
	messages := benchMessages(0)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i >= benchWindow {
			done := messages[i%benchWindow].Ref()
			r.mark(done, confirmed)
			r.settle(done, deleted)
		}
		ref := messages[i%benchWindow].Ref()
		if r.standing(ref) == unknown {
			r.hold(ref, 0)
		}
	}
}

// BenchmarkGate lets the messages of many keys through, each of which is free again when its turn comes.
func BenchmarkGate(b *testing.B) {
	g := newGate(100_000)
	g.suspicious = false
	messages := benchMessages(benchWindow)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		m := messages[i%benchWindow]
		if i >= benchWindow {
			g.done(m)
		}
		if g.streamed(m, true) != publishNow {
			b.Fatal("a free key has to wait")
		}
	}
}

// BenchmarkGateOfOneKey queues messages of one key, and lets them out one after another.
func BenchmarkGateOfOneKey(b *testing.B) {
	g := newGate(100_000)
	g.suspicious = false
	messages := benchMessages(1)[:mostQueuedPerKey]
	b.ReportAllocs()
	for b.Loop() {
		for _, m := range messages {
			g.streamed(m, true)
		}
		for _, m := range messages {
			g.done(m)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(messages)), "ns/message")
}

// BenchmarkCore brings messages through all decisions: streamed, confirmed, deleted in batches.
func BenchmarkCore(b *testing.B) {
	for _, keys := range []int{0, benchWindow} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) { benchmarkCore(b, keys) })
	}
}

func benchmarkCore(b *testing.B, keys int) {
	const batch = 500
	counts, err := newMetrics(prometheus.NewRegistry(), func() float64 { return 0 }, func() float64 { return 0 })
	if err != nil {
		b.Fatal(err)
	}
	c := newCore(benchWindow, defaultBounds(), counts)
	c.tookSlot(holding{pid: 1})
	c.publisherReady(true)
	c.mu.gate.suspicious = false
	messages := benchMessages(keys)
	b.ReportAllocs()
	for done := 0; b.Loop(); done += batch {
		part := messages[done%benchWindow:][:batch]
		settlements := make([]store.Settlement, 0, batch)
		for _, m := range part {
			m.TakenAt = c.clock()
			if next, v := c.streamed(m, 1, true); v != taken || next == nil {
				b.Fatalf("verdict %d", v)
			}
		}
		for _, m := range part {
			result := outbox.Result{Message: m, Outcome: outbox.Confirmed}
			settlement, _, _ := c.resolved(result, store.Decision{Action: store.Delete})
			settlements = append(settlements, settlement)
		}
		c.settled(settlements, false)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/message")
}

package metrics

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
)

// They vanish once the last sample has expired.
func TestSampledMetricsVanishWhileTheDatabaseIsDown(t *testing.T) {
	var down error
	asks := true
	c := newSampleCollector(Sampler{
		Asks: func() bool { return asks },
		Ask: func(context.Context) (store.Sample, error) {
			return store.Sample{Rows: pgtype.Int8{Int64: 7, Valid: true}}, down
		},
	})
	taken := time.Now()
	if sample, _, ok := c.current(taken); !ok || sample.Rows.Int64 != 7 {
		t.Fatalf("%+v is shown: %v", sample, ok)
	}
	if _, age, ok := c.current(taken.Add(sampleEvery / 2)); !ok || age > sampleEvery {
		t.Errorf("a sample of age %s, not expired, is shown: %v", age, ok)
	}
	down = errors.New("connection refused")
	for _, passed := range []struct {
		time time.Duration
		want bool
	}{{sampleOld / 2, true}, {sampleOld, false}} {
		// A sample whose query took long is shown for longer than sampleOld.
		c.mu.at, c.mu.until, c.mu.next = taken.Add(-passed.time), taken.Add(sampleOld-passed.time), time.Time{}
		if _, age, ok := c.current(time.Now()); ok != passed.want {
			t.Errorf("a sample of age %s is shown: %v", age, ok)
		}
	}
	down, asks, c.mu.next = nil, false, time.Time{}
	if _, _, ok := c.current(time.Now()); ok {
		t.Error("a relay that does not ask shows a sample")
	}
}

func TestTraceIDComesFromTraceparent(t *testing.T) {
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	for headers, want := range map[string]string{
		`{"traceparent": "00-` + id + `-00f067aa0ba902b7-01"}`:        id,
		`{"traceparent": "cc-` + id + `-00f067aa0ba902b7-01-future"}`: id,
		`{}`:                  "",
		`{"traceparent": 7}`:  "",
		`{"traceparent": ""}`: "",
		`{"nested": {"traceparent": "00-` + id + `-00f067aa0ba902b7-01"}}`:           "",
		`{"traceparent": "00-00000000000000000000000000000000-00f067aa0ba902b7-01"}`: "",
		`{"traceparent": "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"}`: "",
	} {
		if got := traceID([]byte(headers)); got != want {
			t.Errorf("%s: got %q, want %q", headers, got, want)
		}
	}
}

// confirmedResult is the result of one streamed message.
func confirmedResult(headers string) outbox.Result {
	now := time.Now()
	return outbox.Result{Outcome: outbox.Confirmed, Message: &outbox.Message{
		Row: outbox.Row{
			Headers: []byte(headers),
		},
		CommittedAt: now.Add(-20 * time.Millisecond),
		TakenAt:     now.Add(-15 * time.Millisecond),
		SentAt:      now.Add(-10 * time.Millisecond),
	}}
}

func newTestMetrics(t testing.TB, by By) *Metrics {
	no := func() bool { return false }
	m, err := New(prometheus.NewRegistry(), by, func() int { return 0 }, no, no)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestMetricsAllocateNothingForAMessage(t *testing.T) {
	for _, headers := range []string{"", `{"tenant": "acme"}`} {
		m, r := newTestMetrics(t, By{}), confirmedResult(headers)
		if n := testing.AllocsPerRun(1000, func() { m.Result(r) }); n != 0 {
			t.Errorf("%v allocations a message with headers %q", n, headers)
		}
	}
	m, r := newTestMetrics(t, By{}), confirmedResult(`{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}`)
	if n := testing.AllocsPerRun(10_000, func() { m.Result(r) }); n >= 1 {
		t.Errorf("%v allocations a traced message", n)
	}
}

// The publisher marks a message that it sends long after the row was taken.
func TestMessagesMarkedByThePublisherCountAsPossibleDuplicates(t *testing.T) {
	m, r := newTestMetrics(t, By{}), confirmedResult("")
	m.Result(r)
	r.Message.SentAt = r.Message.TakenAt.Add(outbox.CertainFor + time.Second)
	m.Result(r)
	var got dto.Metric
	if err := m.possibleDuplicates.Write(&got); err != nil || got.GetCounter().GetValue() != 1 {
		t.Errorf("got %v, %v", got.GetCounter().GetValue(), err)
	}
}

func TestRowsThatLeaveUnpublishedAreCountedByTheirReason(t *testing.T) {
	m := newTestMetrics(t, By{})
	for _, d := range []outbox.Decision{
		{Action: outbox.DeadLetter, Reason: outbox.ReasonExpired},
		{Action: outbox.Delete, Reason: outbox.ReasonExpired},
		{Action: outbox.Delete, Reason: outbox.ReasonExpired},
		{Action: outbox.Delete, Reason: outbox.ReasonCoalesced},
		{Action: outbox.Delete},
		{Action: outbox.Retry, Reason: outbox.ReasonNack},
	} {
		m.Written(outbox.Settlement{Message: &outbox.Message{}, Decision: d})
	}
	for counter, want := range map[prometheus.Counter]float64{m.expired: 3, m.coalesced: 1, m.deleted: 1} {
		var got dto.Metric
		if err := counter.Write(&got); err != nil || got.GetCounter().GetValue() != want {
			t.Errorf("%s: %v, want %v", counter.Desc(), got.GetCounter().GetValue(), want)
		}
	}
}

func TestRatesAreThoseOfTheTimeBetween(t *testing.T) {
	bounds, began := []float64{0.001, 0.01, 0.1, math.Inf(1)}, time.Now()
	earlier := Progress{At: began, Published: 40, LastID: 50, confirmed: histogram{bounds, []uint64{7, 7, 7, 7}}}
	later := Progress{At: began.Add(10 * time.Second), Published: 140, LastID: 70, confirmed: histogram{bounds, []uint64{7, 97, 107, 107}}}
	got := later.Since(earlier)
	if got.PublishedPerSecond != 10 || got.NewRowsPerSecond != 2 || got.Seconds != 10 || got.Latency == nil || got.Latency.Messages != 100 ||
		math.Abs(got.Latency.P50Seconds-0.006) > 1e-9 || math.Abs(got.Latency.P99Seconds-0.091) > 1e-9 {
		t.Errorf("got %+v, %+v", got, got.Latency)
	}
	if got := later.Since(later); got.PublishedPerSecond != 0 || got.Latency != nil {
		t.Errorf("in no time: got %+v", got)
	}
}

// Package metrics has the Prometheus metrics of a relay: counters and histograms, and the values that are read at a
// scrape. Dashboards depend on the names; docs/metrics.md lists them.
package metrics

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
)

// Metrics are the counters and histograms of a relay. They are safe for concurrent use.
type Metrics struct {
	leftInTable, undecodable, deleted     prometheus.Counter
	aside, expired, coalesced             prometheus.Counter
	possibleDuplicates, returned          prometheus.Counter
	commitToPublish, commitToConfirm      *latency
	settleDuration, settleRows, sweepRows prometheus.Histogram
	deferred, hookDropped, hookPanics     *prometheus.CounterVec
	published, deadLettered, rejected     ofMessages
	streamConnected                       prometheus.Gauge
	publisherPhase                        *prometheus.GaugeVec
	// confirmed is the sum of published.
	confirmed atomic.Int64
}

// New registers the metrics. InFlight counts messages in memory; owns and stopped are read at each scrape. It returns
// an error for a wrong By, or if another relay uses the registry.
func New(
	registry prometheus.Registerer, by By, inFlight func() int, owns, stopped func() bool,
) (*Metrics, error) {
	dimensions, err := by.dimensions()
	if err != nil {
		return nil, err
	}
	k := &maker{registry: registry}
	m := &Metrics{}
	m.count(k, dimensions)
	m.measure(k)
	k.gauge("messages_in_flight",
		"Messages in memory: sent and not confirmed, queued behind their ordering key, "+
			"or waiting for their row to be deleted or updated.",
		func() float64 { return float64(inFlight()) })
	k.gauge("slot_held", "1 if this relay is the leader; 0 for a standby.",
		func() float64 { return oneIf(owns()) })
	k.gauge("publishing_stopped",
		"1 while the relay does not publish, because it cannot delete the rows of published messages.",
		func() float64 { return oneIf(stopped()) })
	m.streamConnected = add(k, prometheus.NewGauge(prometheus.GaugeOpts(
		opts("stream_connected", "1 while the replication stream is connected."))))
	m.publisherPhase = add(k, prometheus.NewGaugeVec(prometheus.GaugeOpts(
		opts("publisher_phase", "1 for the current phase of the publisher.")), []string{"phase"}))
	if k.err != nil {
		return nil, fmt.Errorf("register metrics: %w", k.err)
	}
	return m, nil
}

// count creates the counters.
func (m *Metrics) count(k *maker, by []dimension) {
	m.published = k.ofMessages(by, "messages_published_total", "Messages that were confirmed.")
	m.possibleDuplicates = k.counter("messages_possible_duplicates_total",
		"Confirmed messages that carried x-possible-duplicate.")
	m.returned = k.counter("messages_returned_total",
		"Messages that were returned because they were unroutable.")
	m.deadLettered = k.ofMessages(by, "messages_dead_lettered_total", "Messages moved to the dead-letter table.")
	m.expired = k.counter("messages_expired_total",
		"Messages that were not published because their expires_at had passed. "+
			"They are dead-lettered, or deleted with --on-expired drop.")
	m.coalesced = k.counter("messages_coalesced_total",
		"Rows deleted without being published, because a newer row with the same coalesce key waited.")
	m.leftInTable = k.counter("messages_spilled_total",
		"Streamed rows left in the table for the sweep, because the window was full.")
	m.undecodable = k.counter("rows_undecodable_total",
		"Streamed rows that could not be decoded. They stay in the table for the sweep.")
	m.deleted = k.counter("rows_deleted_total", "Rows deleted after their message was confirmed.")
	m.aside = k.counter("rows_set_aside_total",
		"Rows that the relay can neither delete nor update. It does not publish them again.")
	m.rejected = k.ofMessages(by, "messages_refused_total",
		"Rejections, which cost an attempt each, "+
			"and impossible messages, which are dead-lettered at once.", "reason")
	m.published.of(&outbox.Message{}) // with value 0, so that the first message is an increase of the sum
	m.deadLettered.of(&outbox.Message{})
	for _, reason := range outbox.Reasons() {
		m.rejected.of(&outbox.Message{}, string(reason))
	}
	m.deferred = k.counters("messages_deferred_total",
		"Messages affected by an outage, or without room in the publisher, without a charged attempt. "+
			"outcome is unknown (sent, confirm lost) or not_sent.", "outcome")
	m.hookDropped = k.counters("hook_calls_dropped_total",
		"Hook calls that were skipped because the hook is slower than the messages.", "hook")
	m.hookPanics = k.counters("hook_panics_total", "Panics of a hook.", "hook")
}

// measure creates the histograms.
func (m *Metrics) measure(k *maker) {
	m.commitToPublish = newLatency(k, "commit_to_publish_seconds",
		"Time from the commit (database clock) until a streamed message was sent.")
	m.commitToConfirm = newLatency(k, "commit_to_confirm_seconds",
		"Time from the commit (database clock) until a streamed message was confirmed.")
	m.settleDuration = k.histogram("settle_duration_seconds",
		"Duration of one statement that deletes or updates the rows of answered messages.", latencyBounds())
	rows := []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000}
	m.settleRows = k.histogram("settle_batch_rows", "Rows deleted or updated by one statement.", rows)
	m.sweepRows = k.histogram("sweep_batch_rows",
		"Rows that one sweep reads.", rows)
}

// maker creates and registers metrics; err is the first error.
type maker struct {
	registry prometheus.Registerer
	err      error
}

func add[C prometheus.Collector](k *maker, c C) C {
	if k.err == nil {
		k.err = k.registry.Register(c)
	}
	return c
}

func opts(name, help string) prometheus.Opts {
	return prometheus.Opts{Namespace: "cdc_relay", Name: name, Help: help}
}

func (k *maker) counter(name, help string) prometheus.Counter {
	return add(k, prometheus.NewCounter(prometheus.CounterOpts(opts(name, help))))
}

// ofMessages counts messages by their own dimensions, after other labels.
type ofMessages struct {
	*prometheus.CounterVec
	by []dimension
}

func (k *maker) ofMessages(by []dimension, name, help string, labels ...string) ofMessages {
	for _, d := range by {
		labels = append(labels, d.label())
	}
	c := add(k, prometheus.NewCounterVec(prometheus.CounterOpts(opts(name, help)), labels))
	return ofMessages{c, by}
}

// of returns the counter of a message, after its other labels.
func (c ofMessages) of(m *outbox.Message, labels ...string) prometheus.Counter {
	labels = slices.Grow(labels, len(c.by)) // one allocation
	for _, d := range c.by {
		labels = append(labels, d.valueOf(m))
	}
	return c.WithLabelValues(labels...)
}

func (k *maker) counters(name, help, label string) *prometheus.CounterVec {
	return add(k, prometheus.NewCounterVec(prometheus.CounterOpts(opts(name, help)), []string{label}))
}

func (k *maker) gauge(name, help string, f func() float64) {
	add(k, prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts(name, help)), f))
}

func (k *maker) histogram(name, help string, buckets []float64) prometheus.Histogram {
	return add(k, prometheus.NewHistogram(
		prometheus.HistogramOpts{Namespace: "cdc_relay", Name: name, Help: help, Buckets: buckets}))
}

// Result counts the result of a message.
func (m *Metrics) Result(r outbox.Result) {
	switch r.Outcome {
	case outbox.Confirmed:
		m.published.of(r.Message).Inc()
		m.confirmed.Add(1)
		if r.MaybeSent || r.Message.WasMarked() {
			m.possibleDuplicates.Inc()
		}
		m.latencies(r.Message)
	case outbox.Rejected, outbox.Impossible:
		if r.Reason == outbox.ReasonExpired {
			return // counted once its row is gone
		}
		m.rejected.of(r.Message, string(r.Reason)).Inc()
		if r.Reason == outbox.ReasonUnroutable {
			m.returned.Inc()
		}
	default:
		m.deferred.WithLabelValues(r.Outcome.String()).Inc()
	}
}

// latencies measures a confirmed message from its commit. Only streamed rows have a commit time.
func (m *Metrics) latencies(message *outbox.Message) {
	if message.CommittedAt.IsZero() {
		return
	}
	if !message.SentAt.IsZero() {
		m.commitToPublish.observe(message.CommittedAt, message.SentAt, message.Headers)
	}
	m.commitToConfirm.observe(message.CommittedAt, time.Now(), message.Headers)
}

// Settled measures one statement that has written rows.
func (m *Metrics) Settled(rows int, took time.Duration) {
	if rows > 0 {
		m.settleRows.Observe(float64(rows))
		m.settleDuration.Observe(took.Seconds())
	}
}

// Swept measures the rows that a sweep has read together.
func (m *Metrics) Swept(rows int) {
	if rows > 0 {
		m.sweepRows.Observe(float64(rows))
	}
}

// Written counts a row that was settled as decided.
func (m *Metrics) Written(one outbox.Settlement) {
	reason := one.Decision.Reason
	switch one.Decision.Action {
	case outbox.DeadLetter:
		m.deadLettered.of(one.Message).Inc()
		if reason == outbox.ReasonExpired {
			m.expired.Inc()
		}
	case outbox.Delete:
		switch reason {
		case outbox.ReasonExpired:
			m.expired.Inc()
		case outbox.ReasonCoalesced:
			m.coalesced.Inc()
		default:
			m.deleted.Inc()
		}
	}
}

// SetAside counts a row that can neither be deleted nor updated.
func (m *Metrics) SetAside() { m.aside.Inc() }

// Undecodable counts a streamed row that could not be decoded.
func (m *Metrics) Undecodable() { m.undecodable.Inc() }

// LeftInTable counts a streamed row for which there was no room.
func (m *Metrics) LeftInTable() { m.leftInTable.Inc() }

// Streams is called when the stream is connected, and when it is not any more.
func (m *Metrics) Streams(connected bool) { m.streamConnected.Set(oneIf(connected)) }

// Hook returns the counters of a hook: of calls that were skipped, and of panics.
func (m *Metrics) Hook(name string) (dropped, panics prometheus.Counter) {
	return m.hookDropped.WithLabelValues(name), m.hookPanics.WithLabelValues(name)
}

// Phase is called when the publisher is in another phase.
func (m *Metrics) Phase(now publish.Phase) {
	phases := []publish.Phase{
		publish.Connecting, publish.Ready, publish.Blocked, publish.Paused, publish.Closed,
	}
	for _, phase := range phases {
		m.publisherPhase.WithLabelValues(phase.String()).Set(oneIf(phase == now))
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

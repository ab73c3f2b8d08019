package relay

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
)

// metrics are the relay's counters and gauges. The names are part of the contract
// with dashboards: docs/operations.md lists them.
type metrics struct {
	published, deadLettered, spilled, undecodable, deleted prometheus.Counter
	possibleDuplicates                                     prometheus.Counter
	refused, deferred                                      *prometheus.CounterVec
	inFlight, holder                                       prometheus.GaugeFunc
	streamConnected                                        prometheus.Gauge
	publisherPhase                                         *prometheus.GaugeVec
}

func newMetrics(registry prometheus.Registerer, inFlight, holder func() float64) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "cdc_relay", Name: name, Help: help})
	}
	counters := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "cdc_relay", Name: name, Help: help}, []string{label})
	}
	gauge := func(name, help string, f func() float64) prometheus.GaugeFunc {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "cdc_relay", Name: name, Help: help}, f)
	}
	m := &metrics{
		published: counter("messages_published_total",
			"Messages that the broker confirmed."),
		deadLettered: counter("messages_dead_lettered_total",
			"Messages moved to the dead-letter table."),
		spilled: counter("messages_spilled_total",
			"Streamed rows left in the table for the sweep, since the publisher could not take them."),
		undecodable: counter("rows_undecodable_total",
			"Streamed rows that could not be read; they stay in the table for the sweep."),
		deleted: counter("rows_deleted_total",
			"Rows deleted after their message was confirmed."),
		possibleDuplicates: counter("messages_possible_duplicates_total",
			"Confirmed messages that carried x-possible-duplicate."),
		refused: counters("messages_refused_total",
			"Refusals by the broker, or of messages that cannot be published; each costs an attempt.", "reason"),
		deferred: counters("messages_deferred_total",
			"Messages that met an outage; no attempt was charged. outcome is unknown (sent, confirm lost) or not_sent.", "outcome"),
		inFlight: gauge("messages_in_flight",
			"Messages in memory: on their way, queued behind their ordering key, or waiting for their row to be settled.", inFlight),
		holder: gauge("slot_held",
			"1 where this relay holds the replication slot, 0 where it stands by or polls.", holder),
		streamConnected: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "cdc_relay", Name: "stream_connected", Help: "1 while the replication stream is connected.",
		}),
		publisherPhase: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "cdc_relay", Name: "publisher_phase", Help: "1 for the phase that the publisher is in.",
		}, []string{"phase"}),
	}
	for _, c := range []prometheus.Collector{
		m.published, m.deadLettered, m.spilled, m.undecodable, m.deleted, m.possibleDuplicates, m.refused, m.deferred,
		m.inFlight, m.holder, m.streamConnected, m.publisherPhase,
	} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) result(r outbox.Result) {
	switch r.Outcome {
	case outbox.Confirmed:
		m.published.Inc()
		if r.Message.PossibleDuplicate || r.MaybeSent {
			m.possibleDuplicates.Inc()
		}
	case outbox.Refused, outbox.Impossible:
		m.refused.WithLabelValues(string(r.Reason)).Inc()
	default:
		m.deferred.WithLabelValues(r.Outcome.String()).Inc()
	}
}

func (m *metrics) phase(now publish.Phase) {
	for _, phase := range [...]publish.Phase{publish.Connecting, publish.Ready, publish.Blocked, publish.Paused, publish.Closed} {
		value := 0.0
		if phase == now {
			value = 1
		}
		m.publisherPhase.WithLabelValues(phase.String()).Set(value)
	}
}

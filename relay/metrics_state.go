package relay

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/publish"
)

// stateCollector reports the state of the relay at each scrape.
type stateCollector struct {
	relay                        *Relay
	role, breaker                *prometheus.Desc
	broker, database             *prometheus.Desc
	registry, heard, blockedTime *prometheus.Desc
}

func newStateCollector(r *Relay) *stateCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("cdc_relay_"+name, help, labels, nil)
	}
	return &stateCollector{
		relay:    r,
		role:     desc("role", "1 for the current role of the relay.", "role"),
		breaker:  desc("breaker_state", "1 for the current state of the circuit breaker.", "state"),
		broker:   desc("broker_connected", "1 while the publisher is connected to RabbitMQ, even if RabbitMQ has blocked the connection."),
		database: desc("database_connected", "1 while the relay's statements on its tables succeed."),
		registry: desc("registry_rows", "Rows in the registry, which prevents that stream and sweep publish a row twice."),
		heard:    desc("stream_last_activity_timestamp_seconds", "Unix time of the last message on the replication stream. 0: none yet."),
		blockedTime: desc("publisher_blocked_seconds_total",
			"Total time for which RabbitMQ blocked the connection (memory or disk alarm)."),
	}
}

// Describe implements prometheus.Collector.
func (c *stateCollector) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{c.role, c.breaker, c.broker, c.database, c.registry, c.heard, c.blockedTime} {
		to <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *stateCollector) Collect(to chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	r := c.relay
	role := r.role()
	for _, one := range []string{"starting", "streaming", "standby", "sweeping", "polling", "stopping"} {
		gauge(c.role, oneIf(one == role), one)
	}
	state := r.publisherState()
	if state.Breaker != "" {
		for _, one := range []string{"closed", "half_open", "open"} {
			gauge(c.breaker, oneIf(one == state.Breaker), one)
		}
	}
	gauge(c.broker, oneIf(state.Phase == publish.Ready || state.Phase == publish.Blocked))
	gauge(c.database, oneIf(r.databaseAnswers()))
	gauge(c.registry, float64(r.core.Remembered()))
	gauge(c.heard, r.streamHeard())
	to <- prometheus.MustNewConstMetric(c.blockedTime, prometheus.CounterValue, r.blocked.total(time.Now()).Seconds())
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (r *Relay) databaseAnswers() bool {
	if phase := r.phase.Load(); phase == phaseStarting || phase == phaseStopped {
		return false
	}
	return r.sweeper.trouble.Current() == "" && r.settler.trouble.Current() == ""
}

// streamHeard is in seconds of Unix time; 0: never.
func (r *Relay) streamHeard() float64 {
	streamer := r.streamer.Load()
	if streamer == nil {
		return 0
	}
	return float64(streamer.heard.Load()) / 1e9
}

// blockedTime adds up how long the broker has blocked the publisher.
type blockedTime struct {
	mu struct {
		sync.Mutex
		before time.Duration
		since  time.Time // zero: not blocked
	}
}

func (b *blockedTime) changed(s publish.State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch blocked := s.Phase == publish.Blocked; {
	case blocked && b.mu.since.IsZero():
		b.mu.since = s.Since
	case !blocked && !b.mu.since.IsZero():
		b.mu.before += time.Since(b.mu.since)
		b.mu.since = time.Time{}
	}
}

func (b *blockedTime) total(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.since.IsZero() {
		return b.mu.before
	}
	return b.mu.before + now.Sub(b.mu.since)
}

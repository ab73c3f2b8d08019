package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/publish"
)

// State is what a relay reports at a scrape.
type State struct {
	// Role is starting, streaming, standby, sweeping, polling or stopping.
	Role      string
	Publisher publish.State
	// DatabaseAnswers: the relay's statements on its tables succeed.
	DatabaseAnswers bool
	// Remembered are the rows in the registry.
	Remembered int
	// Heard is when the stream's last message arrived; zero: none yet.
	Heard time.Time
	// Blocked is how long the broker has blocked the connection in total.
	Blocked time.Duration
	// Silent is for how long the publisher has had messages and given no result.
	Silent time.Duration
	// SetAside are the rows that can be neither deleted nor updated.
	SetAside int
}

// stateCollector reports the state of the relay at each scrape.
type stateCollector struct {
	state                        func() State
	role, breaker                *prometheus.Desc
	broker, database             *prometheus.Desc
	registry, heard, blockedTime *prometheus.Desc
	silent, aside                *prometheus.Desc
}

// RegisterState registers metrics whose values the function returns. It is called by any goroutine at any time.
func RegisterState(registry prometheus.Registerer, state func() State) error {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("cdc_relay_"+name, help, labels, nil)
	}
	return registry.Register(&stateCollector{
		state:   state,
		role:    desc("role", "1 for the current role of the relay.", "role"),
		breaker: desc("breaker_state", "1 for the current state of the circuit breaker.", "state"),
		broker: desc("broker_connected",
			"1 while the publisher is connected, even if the connection is blocked."),
		database: desc("database_connected", "1 while the relay's statements on its tables succeed."),
		registry: desc("registry_rows",
			"Rows in the registry, which prevents that stream and sweep publish a row twice."),
		heard: desc("stream_last_activity_timestamp_seconds",
			"Unix time of the last message on the replication stream. 0: none yet."),
		blockedTime: desc("publisher_blocked_seconds_total",
			"Total time for which the connection was blocked."),
		silent: desc("publisher_silent_seconds",
			"Time for which the publisher has had messages and given no result. 0: none waits for it."),
		aside: desc("set_aside_rows", "Rows that the relay can neither delete nor update."),
	})
}

// Describe implements prometheus.Collector.
func (c *stateCollector) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		c.role, c.breaker, c.broker, c.database, c.registry, c.heard, c.blockedTime, c.silent, c.aside,
	} {
		to <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *stateCollector) Collect(to chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	s := c.state()
	for _, one := range []string{"starting", "streaming", "standby", "sweeping", "polling", "stopping"} {
		gauge(c.role, oneIf(one == s.Role), one)
	}
	if s.Publisher.Breaker != "" {
		for _, one := range []string{"closed", "half_open", "open"} {
			gauge(c.breaker, oneIf(one == s.Publisher.Breaker), one)
		}
	}
	gauge(c.broker, oneIf(s.Publisher.Phase == publish.Ready || s.Publisher.Phase == publish.Blocked))
	gauge(c.database, oneIf(s.DatabaseAnswers))
	gauge(c.registry, float64(s.Remembered))
	heard := 0.0
	if !s.Heard.IsZero() {
		heard = float64(s.Heard.UnixNano()) / 1e9
	}
	gauge(c.heard, heard)
	gauge(c.silent, s.Silent.Seconds())
	gauge(c.aside, float64(s.SetAside))
	to <- prometheus.MustNewConstMetric(c.blockedTime, prometheus.CounterValue, s.Blocked.Seconds())
}

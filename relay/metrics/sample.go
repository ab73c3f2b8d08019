package metrics

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/store"
)

// Sampler asks the database about the queue.
type Sampler struct {
	// Asks reports whether this relay asks. A standby does not: its leader reports the values.
	Asks func() bool
	Ask  func(ctx context.Context) (store.Sample, error)
}

// sampleCollector asks the database about the queue at each scrape.
type sampleCollector struct {
	Sampler
	depth, oldest, dead, lag, retain *prometheus.Desc
	newer, age, removed              *prometheus.Desc

	mu struct {
		sync.Mutex
		sample store.Sample
		at     time.Time // zero: no sample
		// until is when the sample expires, next when the database may be asked again.
		until, next time.Time
	}
}

const (
	// sampleEvery is the least time between two queries, however many scrapes there are.
	sampleEvery = 5 * time.Second
	// sampleShare bounds the share of time for queries: a sample is kept 100 times as long as its query took.
	sampleShare = 100
	// sampleAgain is the wait after a failed query.
	sampleAgain = 15 * time.Second
	// sampleOld is the age at which a sample expires, unless sampleShare keeps it longer.
	sampleOld = time.Minute
)

// RegisterSample registers metrics of the queue and the slot, which the sampler reads at a scrape, at most every five
// seconds and for at most a hundredth of the time.
func RegisterSample(registry prometheus.Registerer, s Sampler) error {
	return registry.Register(newSampleCollector(s))
}

func newSampleCollector(s Sampler) *sampleCollector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("cdc_relay_"+name, help, nil, nil)
	}
	return &sampleCollector{
		Sampler: s,
		depth:   desc("queue_depth_rows", "Rows of the outbox: exact up to 10,000, estimated beyond."),
		oldest: desc("oldest_pending_seconds",
			"Time for which the oldest ready row has waited, also behind its ordering key (database clock). 0: none."),
		dead: desc("dead_letter_rows", "Rows of the dead-letter table: exact up to 10,000, estimated beyond."),
		newer: desc("newer_version_rows",
			"Rows among the oldest 10,000 whose schema_version is newer than this relay knows. "+
				"It does not publish them."),
		lag:    desc("slot_lag_bytes", "Bytes of WAL that the slot's reader has not confirmed."),
		retain: desc("slot_retained_bytes", "Bytes of WAL that the server retains for the slot."),
		removed: desc("slot_wal_removed",
			"1 if the server removes WAL that the slot needs (wal_status unreserved or lost)."),
		age: desc("sample_age_seconds",
			"Age of the sampled values: queue depth, oldest pending, dead letters, and those of the slot."),
	}
}

// Describe implements prometheus.Collector.
func (c *sampleCollector) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{c.depth, c.oldest, c.dead, c.newer, c.lag, c.retain, c.removed, c.age} {
		to <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *sampleCollector) Collect(to chan<- prometheus.Metric) {
	sample, age, ok := c.current(time.Now())
	if !ok {
		return
	}
	gauge := func(desc *prometheus.Desc, value float64) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value)
	}
	whole := func(desc *prometheus.Desc, value pgtype.Int8) {
		if value.Valid {
			gauge(desc, float64(value.Int64))
		}
	}
	whole(c.depth, sample.Rows)
	whole(c.dead, sample.DeadLetters)
	whole(c.newer, sample.NewerVersion)
	whole(c.lag, sample.SlotLag)
	whole(c.retain, sample.SlotRetained)
	if sample.OldestPending.Valid {
		gauge(c.oldest, sample.OldestPending.Float64)
	}
	if sample.SlotRetained.Valid {
		gauge(c.removed, oneIf(sample.WALRemoved))
	}
	gauge(c.age, age.Seconds())
}

// current returns the newest sample, and takes one if it is due. Concurrent scrapes wait for the same sample.
func (c *sampleCollector) current(now time.Time) (store.Sample, time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.Asks() {
		c.mu.at = time.Time{}
		return store.Sample{}, 0, false
	}
	if !now.Before(c.mu.next) {
		sample, err := c.Ask(context.Background())
		done := time.Now()
		c.mu.next = done.Add(sampleAgain)
		if err == nil { // the sweep asks more often and reports errors
			keep := sampleShare * done.Sub(now)
			c.mu.sample, c.mu.at, c.mu.until = sample, done, done.Add(max(sampleOld, keep))
			c.mu.next = done.Add(max(sampleEvery, keep))
		}
		now = done
	}
	return c.mu.sample, max(now.Sub(c.mu.at), 0), !c.mu.at.IsZero() && now.Before(c.mu.until)
}

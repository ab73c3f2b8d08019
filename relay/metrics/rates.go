package metrics

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Progress is what a relay has published by a time.
type Progress struct {
	At        time.Time
	Published int64
	// LastID is the newest id of the outbox; 0: unknown.
	LastID int64
	// confirmed has the cumulative counts of commitToConfirm by upper bound; the last one is infinite.
	confirmed histogram
}

// Rates are how fast a relay publishes, over so many Seconds.
type Rates struct {
	PublishedPerSecond float64 `json:"published_per_second"`
	NewRowsPerSecond   float64 `json:"new_rows_per_second"`
	Seconds            float64 `json:"measured_seconds"`
	// Latency is null without messages.
	Latency *Latency `json:"latency"`
}

// Latency is from the commit to the broker's confirm.
type Latency struct {
	P50Seconds float64 `json:"p50_seconds"`
	P99Seconds float64 `json:"p99_seconds"`
	Messages   int64   `json:"messages"`
}

// Published returns how many messages were confirmed.
func (m *Metrics) Published() int64 { return m.confirmed.Load() }

// Progress returns the counts of now.
func (m *Metrics) Progress() Progress {
	var confirmed dto.Metric
	_ = m.commitToConfirm.Histogram.(prometheus.Metric).Write(&confirmed) // it fails never
	p := Progress{At: time.Now(), Published: m.Published()}
	for _, bucket := range confirmed.GetHistogram().GetBucket() {
		p.confirmed.bounds = append(p.confirmed.bounds, bucket.GetUpperBound())
		p.confirmed.counts = append(p.confirmed.counts, bucket.GetCumulativeCount())
	}
	p.confirmed.bounds = append(p.confirmed.bounds, math.Inf(1))
	p.confirmed.counts = append(p.confirmed.counts, confirmed.GetHistogram().GetSampleCount())
	return p
}

// Since returns the rates since an earlier time.
func (p Progress) Since(earlier Progress) Rates {
	r := Rates{Seconds: p.At.Sub(earlier.At).Seconds()}
	if r.Seconds <= 0 {
		return r
	}
	r.PublishedPerSecond = float64(p.Published-earlier.Published) / r.Seconds
	if earlier.LastID > 0 {
		r.NewRowsPerSecond = max(float64(p.LastID-earlier.LastID)/r.Seconds, 0)
	}
	added := histogram{bounds: p.confirmed.bounds}
	for i, count := range p.confirmed.counts {
		added.counts = append(added.counts, count-earlier.confirmed.counts[i])
	}
	if n := added.total(); n > 0 {
		r.Latency = &Latency{added.quantile(0.5), added.quantile(0.99), int64(n)}
	}
	return r
}

// histogram holds cumulative counts by upper bound.
type histogram struct {
	bounds []float64
	counts []uint64
}

func (h histogram) total() uint64 { return h.counts[len(h.counts)-1] }

// quantile interpolates linearly within a bucket, as Prometheus does. Values beyond the last bound count as that bound.
func (h histogram) quantile(q float64) float64 {
	rank := q * float64(h.total())
	below, lower := 0.0, 0.0
	for i, n := range h.counts {
		if count := float64(n); count >= rank && count > below {
			if math.IsInf(h.bounds[i], 1) {
				return lower
			}
			return lower + (h.bounds[i]-lower)*(rank-below)/(count-below)
		}
		below, lower = float64(n), h.bounds[i]
	}
	return lower
}

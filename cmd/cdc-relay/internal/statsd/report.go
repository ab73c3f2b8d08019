package statsd

import (
	"fmt"
	"math"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
)

// ours is the prefix of the metrics to send. The agent itself collects the metrics of Go and of the process.
const ours = "cdc_relay_"

// client is the used part of the DogStatsD client, which reports errors to its error handler.
type client interface {
	Count(name string, value int64, tags []string, rate float64) error
	Gauge(name string, value float64, tags []string, rate float64) error
}

// state is what was sent of counters and histograms, by name and tags.
type state struct {
	counters   map[string]float64
	histograms map[string]histogram
}

// histogram holds the counts of a series.
type histogram struct {
	bounds []float64 // upper bounds, without the infinite one
	counts []float64 // one count for each bucket; the last bucket has no bound
	sum    float64
}

func newState() state {
	return state{counters: make(map[string]float64), histograms: make(map[string]histogram)}
}

// report sends the families and returns the new state.
func (s state) report(to client, families []*dto.MetricFamily) state {
	next := newState()
	for _, family := range families {
		name, ok := strings.CutPrefix(family.GetName(), ours)
		if !ok {
			continue
		}
		for _, m := range family.GetMetric() {
			tags := tagsOf(m)
			series := name + "|" + fmt.Sprint(m.GetLabel())
			switch family.GetType() {
			case dto.MetricType_COUNTER:
				next.counters[series] = count(to, strings.TrimSuffix(name, "_total"), tags, s.counters[series],
					m.GetCounter().GetValue())
			case dto.MetricType_GAUGE:
				_ = to.Gauge(name, m.GetGauge().GetValue(), tags, 1)
			case dto.MetricType_HISTOGRAM:
				now := histogramOf(m.GetHistogram())
				now.since(s.histograms[series]).report(to, name, tags)
				next.histograms[series] = now
			}
		}
	}
	return next
}

// tagsOf replaces what ends a tag or a datagram in the protocol: a routing key may have any character.
// https://docs.datadoghq.com/extend/dogstatsd/datagram_shell
func tagsOf(m *dto.Metric) []string {
	var tags []string
	reserved := strings.NewReplacer(",", "_", "|", "_", "#", "_", "\n", "_")
	for _, label := range m.GetLabel() {
		tags = append(tags, label.GetName()+":"+reserved.Replace(label.GetValue()))
	}
	return tags
}

// count sends the increase in whole units and returns the total that was sent. A fraction, as of seconds, waits for the
// next time.
func count(to client, name string, tags []string, before, now float64) float64 {
	if now < before { // the counter was reset
		before = 0
	}
	increase := math.Floor(now - before)
	_ = to.Count(name, int64(increase), tags, 1)
	return before + increase
}

func histogramOf(h *dto.Histogram) histogram {
	now := histogram{sum: h.GetSampleSum()}
	below := 0.0
	for _, bucket := range h.GetBucket() {
		if math.IsInf(bucket.GetUpperBound(), 1) {
			continue
		}
		now.bounds = append(now.bounds, bucket.GetUpperBound())
		now.counts = append(now.counts, float64(bucket.GetCumulativeCount())-below)
		below = float64(bucket.GetCumulativeCount())
	}
	now.counts = append(now.counts, float64(h.GetSampleCount())-below)
	return now
}

// since returns the counts added after before.
func (h histogram) since(before histogram) histogram {
	if len(before.counts) != len(h.counts) || total(before.counts) > total(h.counts) {
		return h
	}
	grown := histogram{bounds: h.bounds, counts: slices.Clone(h.counts), sum: h.sum - before.sum}
	for i := range grown.counts {
		grown.counts[i] -= before.counts[i]
	}
	return grown
}

// report sends the number of observations and, if there are any, their average and quantiles.
func (h histogram) report(to client, name string, tags []string) {
	n := total(h.counts)
	_ = to.Count(name+".count", int64(n), tags, 1)
	if n == 0 {
		return
	}
	_ = to.Gauge(name+".avg", h.sum/n, tags, 1)
	for _, quantile := range []struct {
		name string
		of   float64
	}{{".p50", 0.5}, {".p95", 0.95}, {".p99", 0.99}} {
		_ = to.Gauge(name+quantile.name, h.quantile(quantile.of), tags, 1)
	}
}

// quantile interpolates linearly within a bucket, as histogram_quantile of Prometheus does. Values beyond the last
// bound count as that bound.
func (h histogram) quantile(q float64) float64 {
	rank := q * total(h.counts)
	lower := 0.0
	for i, upper := range h.bounds {
		if n := h.counts[i]; n > 0 && rank <= n {
			return lower + (upper-lower)*rank/n
		}
		rank -= h.counts[i]
		lower = upper
	}
	return lower
}

func total(counts []float64) float64 {
	sum := 0.0
	for _, n := range counts {
		sum += n
	}
	return sum
}

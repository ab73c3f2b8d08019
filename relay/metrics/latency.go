package metrics

import (
	"bytes"
	"encoding/json"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// latency is a histogram in seconds. A bucket keeps the trace id of a message as an exemplar, at most once a second,
// because an exemplar costs more than the observation.
type latency struct {
	prometheus.Histogram
	bounds []float64
	// shown is when each bucket got its last exemplar, in nanoseconds of Unix time.
	shown []atomic.Int64
}

const exemplarEvery = time.Second

// latencyBounds returns the buckets of all latencies, in seconds.
func latencyBounds() []float64 {
	return []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
}

func newLatency(k *maker, name, help string) *latency {
	bounds := latencyBounds()
	return &latency{k.histogram(name, help, bounds), bounds, make([]atomic.Int64, len(bounds)+1)}
}

// observe counts the time between two times. They come from two clocks; a negative difference counts as zero.
func (l *latency) observe(from, to time.Time, headers []byte) {
	seconds := max(to.Sub(from).Seconds(), 0)
	if len(headers) > 0 {
		if id := l.exemplar(seconds, to, headers); id != "" {
			l.Histogram.(prometheus.ExemplarObserver).ObserveWithExemplar(seconds, prometheus.Labels{"trace_id": id})
			return
		}
	}
	l.Observe(seconds)
}

// exemplar returns the trace id to keep for an observation, or "".
func (l *latency) exemplar(seconds float64, now time.Time, headers []byte) string {
	bucket := 0
	for bucket < len(l.bounds) && seconds > l.bounds[bucket] {
		bucket++
	}
	shown := l.shown[bucket].Load()
	if now.UnixNano()-shown < int64(exemplarEvery) {
		return ""
	}
	id := traceID(headers)
	if id == "" || !l.shown[bucket].CompareAndSwap(shown, now.UnixNano()) {
		return ""
	}
	return id
}

// traceID returns the trace id of the header traceparent (W3C Trace Context), or "".
func traceID(headers []byte) string {
	if !bytes.Contains(headers, []byte(`"traceparent"`)) {
		return ""
	}
	var all map[string]json.RawMessage
	var parent string
	if json.Unmarshal(headers, &all) != nil || json.Unmarshal(all["traceparent"], &parent) != nil {
		return ""
	}
	const version, id = len("00-"), 32
	if len(parent) < version+id+len("-0123456789abcdef-01") || parent[version+id] != '-' {
		return ""
	}
	parent = parent[version : version+id]
	zero := true
	for _, c := range []byte(parent) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return ""
		}
		zero = zero && c == '0'
	}
	if zero {
		return ""
	}
	return parent
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// liveRelay asks a running relay by its HTTP address.
type liveRelay struct {
	address string
	client  *http.Client
}

const (
	// liveTimeout is what a relay has to answer.
	liveTimeout = 2 * time.Second
	// liveWindow is how long throughput is measured for, where nothing longer is asked for.
	liveWindow = 250 * time.Millisecond
	// mostAnswer bounds what is read of an answer.
	mostAnswer = 8 << 20
)

// newLiveRelay is nil for no address. A relay that listens everywhere is asked here.
func newLiveRelay(httpAddr string) *liveRelay {
	host, port, err := net.SplitHostPort(httpAddr)
	if err != nil || port == "0" {
		return nil
	}
	if ip := net.ParseIP(host); host == "" || (ip != nil && ip.IsUnspecified()) {
		host = "127.0.0.1"
	}
	return &liveRelay{address: net.JoinHostPort(host, port), client: &http.Client{Timeout: liveTimeout, Transport: &http.Transport{}}}
}

// reading is what a relay's counters said at a time.
type reading struct {
	at       time.Time
	families map[string]*dto.MetricFamily
	// health is the answer of /readyz: the whole in its first line, then the parts.
	health []string
}

func (l *liveRelay) get(ctx context.Context, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+l.address+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := l.client.Do(request)
	var urlErr *url.Error
	if errors.As(err, &urlErr) {
		return nil, urlErr.Err // the address is told beside it
	}
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(io.LimitReader(response.Body, mostAnswer))
}

// read asks once. An answer that is no relay's is an error.
func (l *liveRelay) read(ctx context.Context) (*reading, error) {
	ready, err := l.get(ctx, "/readyz")
	if err != nil {
		return nil, err
	}
	text, err := l.get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(text)))
	if err == nil && families["cdc_relay_build_info"] == nil {
		err = errors.New("there are no metrics of cdc-relay")
	}
	if err != nil {
		return nil, fmt.Errorf("%s/metrics: %w", l.address, err)
	}
	return &reading{at: time.Now(), families: families, health: strings.Split(strings.TrimSpace(string(ready)), "\n")}, nil
}

// value is that of a series without labels, or of the sum of those with any.
func (r *reading) value(name string) float64 {
	sum := 0.0
	for _, metric := range r.families[name].GetMetric() {
		sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + metric.GetUntyped().GetValue()
	}
	return sum
}

// label is that of the series of a family that is 1.
func (r *reading) label(family, label string) string {
	for _, metric := range r.families[family].GetMetric() {
		if metric.GetGauge().GetValue() != 1 {
			continue
		}
		for _, pair := range metric.GetLabel() {
			if pair.GetName() == label {
				return pair.GetValue()
			}
		}
	}
	return ""
}

// histogram is the cumulated counts of one, up to each bound.
type histogram struct {
	bounds []float64
	counts []float64
}

func (r *reading) histogram(name string) histogram {
	var h histogram
	metrics := r.families[name].GetMetric()
	if len(metrics) == 0 {
		return h
	}
	for _, bucket := range metrics[0].GetHistogram().GetBucket() {
		h.bounds = append(h.bounds, bucket.GetUpperBound())
		h.counts = append(h.counts, float64(bucket.GetCumulativeCount()))
	}
	if n := len(h.bounds); n == 0 || !math.IsInf(h.bounds[n-1], 1) {
		h.bounds = append(h.bounds, math.Inf(1))
		h.counts = append(h.counts, float64(metrics[0].GetHistogram().GetSampleCount()))
	}
	return h
}

func (h histogram) total() float64 {
	if len(h.counts) == 0 {
		return 0
	}
	return h.counts[len(h.counts)-1]
}

// since is what was added after an earlier reading.
func (h histogram) since(earlier histogram) histogram {
	if len(h.counts) != len(earlier.counts) {
		return h
	}
	added := histogram{bounds: h.bounds, counts: make([]float64, len(h.counts))}
	for i := range h.counts {
		added.counts[i] = h.counts[i] - earlier.counts[i]
	}
	return added
}

// quantile is as Prometheus computes it: within a bucket evenly spread. What lies beyond
// the last bound counts as that bound.
func (h histogram) quantile(q float64) float64 {
	rank := q * h.total()
	below, lower := 0.0, 0.0
	for i, count := range h.counts {
		if count >= rank && count > below {
			if math.IsInf(h.bounds[i], 1) {
				return lower
			}
			return lower + (h.bounds[i]-lower)*(rank-below)/(count-below)
		}
		below, lower = count, h.bounds[i]
	}
	return lower
}

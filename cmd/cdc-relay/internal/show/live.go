package show

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

// LiveRelay queries a running relay at its HTTP address.
type LiveRelay struct {
	address string
	client  *http.Client
}

const (
	// liveTimeout is how long a relay may take to answer all questions of one reading.
	liveTimeout = 2 * time.Second
	// liveWindow is the default time over which throughput is measured.
	liveWindow = 250 * time.Millisecond
	// mostAnswer limits the bytes of an answer.
	mostAnswer = 8 << 20
)

// NewLiveRelay returns nil for an empty address. For an address that listens on all interfaces, it asks on this
// machine.
func NewLiveRelay(httpAddr string) *LiveRelay {
	host, port, err := net.SplitHostPort(httpAddr)
	if err != nil || port == "0" {
		return nil
	}
	if ip := net.ParseIP(host); host == "" || (ip != nil && ip.IsUnspecified()) {
		host = "127.0.0.1"
	}
	return &LiveRelay{
		address: net.JoinHostPort(host, port),
		client: &http.Client{
			Transport: &http.Transport{},
			// A relay redirects nobody.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// Reading holds the metrics of a relay at one time.
type Reading struct {
	at       time.Time
	Families map[string]*dto.MetricFamily
	// told are the settings and the state of the relay; nil: it does not tell them, and silent says why.
	told   *Told
	silent string
}

// notDeleted are the ids of published rows that the relay cannot delete. R may be nil.
func (r *Reading) notDeleted() []int64 {
	if r == nil || r.told == nil {
		return nil
	}
	return r.told.State.Aside.IDs
}

// get returns the status and the body, which has at most so many bytes.
func (l *LiveRelay) get(ctx context.Context, path string, most int64) (body []byte, status int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+l.address+path, http.NoBody)
	if err != nil {
		return nil, 0, err
	}
	response, err := l.client.Do(request)
	var urlErr *url.Error
	if errors.As(err, &urlErr) {
		return nil, 0, urlErr.Err // the caller names the address
	}
	if err != nil {
		return nil, 0, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(io.LimitReader(response.Body, most))
	if err == nil && response.StatusCode == http.StatusMisdirectedRequest {
		err = errors.New(Shortened(string(body), 200)) // says by which setting it would answer
	}
	return body, response.StatusCode, err
}

// Read queries the relay once. It fails if another program answers.
func (l *LiveRelay) Read(ctx context.Context) (*Reading, error) {
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()
	text, _, err := l.get(ctx, "/metrics", mostAnswer)
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
	reading := &Reading{at: time.Now(), Families: families}
	reading.told, reading.silent = l.told(ctx)
	return reading, nil
}

// Value returns a metric without labels, or the sum over all labels.
func (r *Reading) Value(name string) float64 {
	sum := 0.0
	for _, metric := range r.Families[name].GetMetric() {
		sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + metric.GetUntyped().GetValue()
	}
	return sum
}

// histogram holds cumulative counts by upper bound.
type histogram struct {
	bounds []float64
	counts []float64
}

func (r *Reading) histogram(name string) histogram {
	var h histogram
	metrics := r.Families[name].GetMetric()
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

// since returns the counts added after an earlier reading.
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

// quantile interpolates linearly within a bucket, as Prometheus does. Values beyond the last bound count as that bound.
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

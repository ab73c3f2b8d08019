package show

import (
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

const someMetrics = `# TYPE cdc_relay_build_info gauge
cdc_relay_build_info{version="v1"} 1
# TYPE cdc_relay_messages_published_total counter
cdc_relay_messages_published_total 40
# TYPE cdc_relay_commit_to_confirm_seconds histogram
cdc_relay_commit_to_confirm_seconds_bucket{le="0.001"} 0
cdc_relay_commit_to_confirm_seconds_bucket{le="0.01"} 90
cdc_relay_commit_to_confirm_seconds_bucket{le="0.1"} 100
cdc_relay_commit_to_confirm_seconds_bucket{le="+Inf"} 100
cdc_relay_commit_to_confirm_seconds_sum 1
cdc_relay_commit_to_confirm_seconds_count 100
`

func TestStatsReadsMetricsAndStateOfARunningRelay(t *testing.T) {
	answer := someMetrics
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/settings" {
			w.Write([]byte(`{"table":"t","state":{"role":"streaming","publisher":"blocked"}}`)) //nolint:errcheck // as below
			return
		}
		w.Write([]byte(answer)) //nolint:errcheck // the test notices an error
	}))
	defer server.Close()
	live := NewLiveRelay(strings.TrimPrefix(server.URL, "http://"))
	r, err := live.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r.Value("cdc_relay_messages_published_total") != 40 || r.told == nil || r.told.State.Role != "streaming" ||
		r.told.State.Phase != "blocked" {
		t.Errorf("got %+v", r)
	}
	h := r.histogram("cdc_relay_commit_to_confirm_seconds")
	if got := h.quantile(0.5); math.Abs(got-0.006) > 1e-9 {
		t.Errorf("p50 %g", got)
	}
	if got := h.quantile(0.99); math.Abs(got-0.091) > 1e-9 {
		t.Errorf("p99 %g", got)
	}
	if got := h.since(h).total(); got != 0 {
		t.Errorf("merged with itself: got %g", got)
	}
	answer = "hello"
	if _, err := live.Read(t.Context()); err == nil {
		t.Error("a server that is no relay was accepted")
	}
}

func TestStatsDerivesTheAddressFromHTTPAddr(t *testing.T) {
	for addr, want := range map[string]string{
		"0.0.0.0:9464": "127.0.0.1:9464", ":9464": "127.0.0.1:9464", "[::]:1": "127.0.0.1:1",
		"10.0.0.7:9464": "10.0.0.7:9464", "relay:1": "relay:1",
	} {
		if got := NewLiveRelay(addr); got == nil || got.address != want {
			t.Errorf("%s: got %v, want %s", addr, got, want)
		}
	}
	for _, addr := range []string{"", "127.0.0.1:0"} {
		if got := NewLiveRelay(addr); got != nil {
			t.Errorf("%s: got %v", addr, got)
		}
	}
}

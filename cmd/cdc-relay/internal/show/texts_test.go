package show

import (
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/relay"
)

func TestDurationsSizesAndCountsAreReadable(t *testing.T) {
	for _, test := range []struct{ got, want string }{
		{Duration(850 * time.Millisecond), "850ms"},
		{Duration(59 * time.Second), "59s"},
		{Duration(200 * time.Second), "3m20s"},
		{Duration(-2 * time.Minute), "-2m0s"},
		{Duration(5*time.Hour + 2*time.Minute), "5h2m"},
		{Duration(99 * time.Hour), "4d3h"},
		{Duration(math.MinInt64), "-106751d23h"},
		{Bytes(0), "0 B"},
		{Bytes(1023), "1023 B"},
		{Bytes(16 << 10), "16.0 kB"},
		{Bytes(300 << 20), "300 MB"},
		{Number(1), "1"},
		{Number(-1234), "-1,234"},
		{Number(-123), "-123"},
		{Number(10_000_000), "10,000,000"},
		{Printable("a\x1b[2Jb\nc größer"), `a\x1b[2Jb\nc größer`},
		{Shortened("größer", 4), "grö…"},
		{Count(operator.Count{N: 3, Precision: operator.Exact}), "3"},
		{Count(operator.Count{N: operator.MostCounted, Precision: operator.AtLeast}), "more than 10,000"},
		{Count(operator.Count{N: 3, Precision: operator.AtLeast}), "at least 3"},
		{Count(operator.Count{N: 3_000_000, Precision: operator.Estimate}), "about 3,000,000"},
	} {
		if test.got != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
	}
}

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

// No relay streams, so standbys publish it within TakeOver.
func TestExplainSaysWhenARowWithoutALeaderIsPublished(t *testing.T) {
	cfg := relay.DefaultConfig()
	s := Surroundings{Settings: Settings{Config: &cfg}}
	if is := s.outlookOf(operator.Message{State: operator.AtOnce}).text; !strings.Contains(is, "within 6s or so") {
		t.Errorf("got %q", is)
	}
}

// A row that has expired, or will before its turn, is not published.
func TestExplainSaysThatARowExpires(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		onExpired          relay.OnExpired
		expires, available *time.Time
		want               string
	}{
		{relay.OnExpiredDeadLetter, &now, &now, "it has expired, and is not published but a dead letter then"},
		{relay.OnExpiredDrop, &now, &now, "it has expired, and is not published but deleted then"},
		{relay.OnExpiredDeadLetter, new(now.Add(time.Hour)), new(now.Add(2 * time.Hour)), "it will have expired"},
		{relay.OnExpiredDeadLetter, new(now.Add(2 * time.Hour)), new(now.Add(time.Hour)), ""},
		{relay.OnExpiredDeadLetter, new(time.Time{}), new(now.Add(time.Hour)), "it has expired"},
		{relay.OnExpiredDeadLetter, nil, new(now.Add(time.Hour)), ""},
	} {
		cfg := relay.DefaultConfig()
		s := Surroundings{Settings: Settings{Config: &cfg}}
		cfg.OnExpired = c.onExpired
		w := operator.Message{State: operator.Scheduled, AvailableAt: c.available}
		w.ReadAt, w.ExpiresAt = now, c.expires
		if is := s.outlookOf(w).text; !strings.Contains(is, c.want) || (c.want == "" && strings.Contains(is, "expired")) {
			t.Errorf("expires %s, available %s: %q, want %q", c.expires, c.available, is, c.want)
		}
	}
}

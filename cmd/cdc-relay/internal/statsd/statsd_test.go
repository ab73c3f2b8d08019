package statsd

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) { t.Helper(); services.Must(t, err) }

// agent is a socket in place of an agent.
type agent struct {
	*testing.T
	conn net.PacketConn
}

func newAgent(t *testing.T, network, addr string) agent {
	t.Helper()
	conn, err := (&net.ListenConfig{}).ListenPacket(t.Context(), network, addr)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return agent{t, conn}
}

// lines returns the lines of all packets up to the one with the last metric, without the client's container id.
func (a agent) lines(last string) []string {
	a.Helper()
	must(a, a.conn.SetReadDeadline(time.Now().Add(await.Hang())))
	var lines []string
	packet := make([]byte, 1<<16)
	for !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, last+":") }) {
		n, _, err := a.conn.ReadFrom(packet)
		if err != nil {
			a.Fatalf("%v; got %q", err, lines)
		}
		for line := range strings.Lines(string(packet[:n])) {
			fields := strings.Split(strings.TrimSpace(line), "|")
			fields = slices.DeleteFunc(fields, func(f string) bool { return strings.HasPrefix(f, "c:") || strings.HasPrefix(f, "e:") })
			lines = append(lines, strings.Join(fields, "|"))
		}
	}
	slices.Sort(lines)
	return lines
}

// registered is a registry with one metric of each kind, and one without our prefix. cdc_relay_z is sent last.
type registered struct {
	*prometheus.Registry
	refused *prometheus.CounterVec
	blocked prometheus.Counter
	latency prometheus.Histogram
}

func newRegistered() registered {
	r := registered{
		Registry: prometheus.NewRegistry(),
		refused:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cdc_relay_refused_total"}, []string{"reason"}),
		blocked:  prometheus.NewCounter(prometheus.CounterOpts{Name: "cdc_relay_blocked_seconds_total"}),
		latency:  prometheus.NewHistogram(prometheus.HistogramOpts{Name: "cdc_relay_latency_seconds", Buckets: []float64{1, 2, 4}}),
	}
	other := prometheus.NewGauge(prometheus.GaugeOpts{Name: "go_goroutines"})
	last := prometheus.NewGauge(prometheus.GaugeOpts{Name: "cdc_relay_z"})
	last.Set(1.5)
	r.MustRegister(r.refused, r.blocked, r.latency, other, last)
	return r
}

func bridge(t *testing.T, address string, r prometheus.Gatherer, log *slog.Logger) *Bridge {
	t.Helper()
	b, err := New(address, r, log)
	must(t, err)
	return b
}

func TestCountersAreSentAsIncrements(t *testing.T) {
	a := newAgent(t, "udp", "127.0.0.1:0")
	r := newRegistered()
	b := bridge(t, a.conn.LocalAddr().String()+"?prefix=shop&tags=env:test", r, slog.New(slog.DiscardHandler))
	r.refused.WithLabelValues("nack").Add(3)
	r.refused.WithLabelValues("a,b|c#d").Add(2)
	r.refused.WithLabelValues("a_b,c|d").Add(5)
	r.blocked.Add(1.75)
	for range 10 {
		r.latency.Observe(1.5)
	}
	b.Send()
	want := []string{
		"shop.blocked_seconds:1|c|#env:test",
		"shop.latency_seconds.avg:1.5|g|#env:test",
		"shop.latency_seconds.count:10|c|#env:test",
		"shop.latency_seconds.p50:1.5|g|#env:test",
		"shop.latency_seconds.p95:1.95|g|#env:test",
		"shop.latency_seconds.p99:1.99|g|#env:test",
		"shop.refused:2|c|#env:test,reason:a_b_c_d",
		"shop.refused:3|c|#env:test,reason:nack",
		"shop.refused:5|c|#env:test,reason:a_b_c_d",
		"shop.z:1.5|g|#env:test",
	}
	if got := a.lines("shop.z"); !slices.Equal(got, want) {
		t.Errorf("at first\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	r.refused.WithLabelValues("nack").Inc()
	r.refused.WithLabelValues("a,b|c#d").Inc()
	r.blocked.Add(0.25)
	r.latency.Observe(100)
	b.Send()
	want = []string{
		"shop.blocked_seconds:1|c|#env:test",
		"shop.latency_seconds.avg:100|g|#env:test",
		"shop.latency_seconds.count:1|c|#env:test",
		"shop.latency_seconds.p50:4|g|#env:test",
		"shop.latency_seconds.p95:4|g|#env:test",
		"shop.latency_seconds.p99:4|g|#env:test",
		"shop.refused:0|c|#env:test,reason:a_b_c_d",
		"shop.refused:1|c|#env:test,reason:a_b_c_d",
		"shop.refused:1|c|#env:test,reason:nack",
		"shop.z:1.5|g|#env:test",
	}
	if got := a.lines("shop.z"); !slices.Equal(got, want) {
		t.Errorf("then\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestUnsentMetricsAreSentLater(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dsd.socket")
	r := newRegistered()
	var log bytes.Buffer
	b := bridge(t, "unix://"+path+"?prefix=", r, slog.New(slog.NewTextHandler(&log, nil)))
	r.refused.WithLabelValues("nack").Add(3)
	b.Send()
	b.Send()
	if n := strings.Count(log.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings of one failure:\n%s", n, log.String())
	}
	a := newAgent(t, "unixgram", path)
	b.Send()
	if got := a.lines("z"); !slices.Contains(got, "refused:3|c|#reason:nack") {
		t.Errorf("got %q", got)
	}
	if n := strings.Count(log.String(), "level=INFO"); n != 1 {
		t.Errorf("the end of the failure is not logged:\n%s", log.String())
	}
	_ = os.Remove(path)
}

func (a agent) fill() {
	a.Helper()
	for full := false; !full; { // a sender has limits of its own
		conn, err := (&net.Dialer{}).DialContext(a.Context(), "unixgram", a.conn.LocalAddr().String())
		must(a, err)
		a.Cleanup(func() { _ = conn.Close() })
		for full = true; ; full = false {
			must(a, conn.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
			if _, err := conn.Write([]byte("filler:0|c")); err != nil {
				break
			}
		}
	}
}

func (a agent) takeOne() {
	a.Helper()
	if _, _, err := a.conn.ReadFrom(make([]byte, 1<<10)); err != nil {
		a.Fatal(err)
	}
}

// The agent received only the first of two datagrams.
func TestSentMetricsAreNotSentAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dsd.socket")
	a := newAgent(t, "unixgram", path)
	r := newRegistered()
	r.blocked.Add(7)
	for reason := range 300 {
		r.refused.WithLabelValues(fmt.Sprintf("reason-%d", reason)).Inc()
	}
	var log bytes.Buffer
	b := bridge(t, "unix://"+path+"?prefix=", r, slog.New(slog.NewTextHandler(&log, nil)))
	a.fill()
	a.takeOne()
	b.Send()
	if !strings.Contains(log.String(), "level=WARN") {
		t.Fatal("nothing has failed")
	}
	if got := a.lines("blocked_seconds"); !slices.Contains(got, "blocked_seconds:7|c") {
		t.Fatalf("got %q", got)
	}
	r.blocked.Add(2)
	b.Send()
	got := a.lines("z")
	if !slices.Contains(got, "blocked_seconds:2|c") {
		t.Errorf("got %q", got)
	}
	for _, line := range got {
		if strings.HasPrefix(line, "refused:1|") {
			t.Fatalf("sent again: %s", line)
		}
		if strings.Contains(line, "datadog.") {
			t.Errorf("the client sends its own metrics: %s", line)
		}
	}
}

func TestRunSendsTheLastMetricsAtTheEnd(t *testing.T) {
	a := newAgent(t, "udp", "127.0.0.1:0")
	r := newRegistered()
	b := bridge(t, a.conn.LocalAddr().String()+"?prefix=", r, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.Run(ctx)
	}()
	r.blocked.Add(7)
	cancel()
	<-done
	if got := a.lines("z"); !slices.Contains(got, "blocked_seconds:7|c") {
		t.Errorf("got %q", got)
	}
}

func TestWrongConfigurationsAreRejected(t *testing.T) {
	for _, address := range []string{
		"?", "localhost", ":8125", "localhost:x", "unix://relative", "localhost:8125?prefix=1st", "localhost:8125?prefix=a|b",
		"localhost:8125?tags=", "localhost:8125?tags=a,,b", "localhost:8125?tags=a%23", "localhost:8125?tag=a:b", "localhost:8125?a;b",
	} {
		if err := Check(address); err == nil {
			t.Errorf("%s is accepted", address)
		}
	}
	to, err := parse("localhost:8125?tags=version:1.0+b, team:a%26b")
	if err != nil || to.prefix != "cdc_relay" || !slices.Equal(to.tags, []string{"version:1.0+b", "team:a&b"}) {
		t.Errorf("got %+v, %v", to, err)
	}
}

package service

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/hosts"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/relay"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/systemdtest"
)

type fixedHealth relay.Health

func (h *fixedHealth) Health() relay.Health { return relay.Health(*h) }

func judged(context.Context) show.Verdict {
	return show.Verdict{
		Level: show.Warning, Text: "Needs attention: 2 dead letters", Detail: "NO_ROUTE\x1b]0;x\a\u009b2J", Fix: "bind a queue", Command: "cdc-relay list --state dead",
		Others: []string{"the slot retains 6 GB"},
	}
}

func get(t *testing.T, handler http.Handler, path string) (int, string) {
	t.Helper()
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return recorder.Code, recorder.Body.String()
}

func TestHealthPagesReportEachPart(t *testing.T) {
	health := &fixedHealth{Live: true, Ready: true, Role: "streaming", Parts: []relay.Part{
		{Name: "stream", Live: true, Ready: true},
		{Name: "publisher", Live: true, Ready: true, Detail: "ready"},
	}}
	handler := newHandler(Pages{Reporter: health, Judge: judged, Registry: NewRegistry(Build{})})
	wantPage := func(path string, code int, page string) {
		t.Helper()
		if gotCode, got := get(t, handler, path); gotCode != code || got != page {
			t.Errorf("%s: got %d\n%s\nwant %d\n%s", path, gotCode, got, code, page)
		}
	}
	wantPage("/livez", 200, "live (streaming)\nstream: live\npublisher: live, ready\n")
	wantPage("/readyz", 200, "ready (streaming)\nstream: ready\npublisher: ready, ready\n")
	wantPage("/readyz?verbose", 200, "Needs attention: 2 dead letters\n  NO_ROUTE\\u001b]0;x\\u0007\\u009b2J\n  bind a queue\n  cdc-relay list --state dead\n"+
		"also: the slot retains 6 GB\n\nready (streaming)\nstream: ready\npublisher: ready, ready\n")
	health.Ready = false
	health.Parts[1].Ready, health.Parts[1].Detail = false, "dial amqp://u:s3cr3t@h:\nrefused"
	wantPage("/livez", 200, "live (streaming)\nstream: live\npublisher: live, dial amqp://u:***@h:; refused\n")
	wantPage("/readyz", 503,
		"not ready (streaming)\nstream: ready\npublisher: not ready, dial amqp://u:***@h:; refused\n")
	health.Live, health.Parts[0].Live = false, false
	if code, page := get(t, handler, "/livez"); code != 503 || !strings.Contains(page, "stream: not live\n") {
		t.Errorf("got %d\n%s", code, page)
	}
	code, page := get(t, handler, "/metrics")
	if code != 200 || !strings.Contains(page, "cdc_relay_build_info{") || !strings.Contains(page, "go_goroutines ") {
		t.Errorf("got %d\n%s", code, page)
	}
	asks := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
	asks.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, asks) // exemplars are only in this format
	if kind := recorder.Header().Get("Content-Type"); !strings.HasPrefix(kind, "application/openmetrics-text") {
		t.Errorf("the metrics have the content type %s", kind)
	}
	if code, _ := get(t, handler, "/other"); code != 404 {
		t.Errorf("got %d", code)
	}
}

// A page of evil.example whose name leads to the relay may not read it. Probes and Prometheus ask by all kinds of names.
func TestOnlyKnownNamesOfTheRelayAreAnswered(t *testing.T) {
	handler := newHandler(Pages{
		Reporter: &fixedHealth{Live: true, Ready: true}, Judge: judged, Registry: NewRegistry(Build{}),
	})
	named := guard(hosts.Known{Listen: "relay.example.com:9464"}, handler)
	everywhere := guard(hosts.Known{Listen: "0.0.0.0:9464"}, handler)
	for host, want := range map[string][2]bool{
		"relay.example.com:9464": {true, false}, "Relay.Example.Com.": {true, false},
		"localhost:9464": {true, true}, "127.0.0.1": {true, true}, "[::1]:9464": {true, true},
		"10.42.0.7:9464": {true, true}, "[fd00::7]:9464": {true, true}, "203.0.113.9": {true, true},
		"relay-1:9464": {true, true}, "relay.shop.svc": {true, true}, "relay.shop.svc.cluster.local.": {true, true},
		"relay.internal": {true, true},
		"evil.example":   {}, "evil.example:9464": {}, "localhost.evil.example": {}, "127.0.0.1.evil.example": {},
		"10.42.0.7.nip.io": {}, "svc.evil.example": {}, "a.relay.example.com": {}, "": {}, "localhost@evil.example": {},
	} {
		for i, guarded := range []http.Handler{named, everywhere} {
			for path, open := range map[string]bool{
				"/livez": true, "/readyz": true, "/readyz?verbose": false, "/readyz?verbose=0&x": false, "/metrics": false,
				"//metrics": false,
			} {
				request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
				request.Host = host
				recorder := httptest.NewRecorder()
				guarded.ServeHTTP(recorder, request)
				if answers := recorder.Code != http.StatusMisdirectedRequest; answers != (open || want[i]) {
					t.Errorf("%d: host %q: %s answers %d", i, host, path, recorder.Code)
				}
			}
		}
	}
}

func TestLivenessFileIsUpdatedWhileLive(t *testing.T) {
	name := filepath.Join(t.TempDir(), "live")
	file, err := NewLivenessFile(name)
	services.Must(t, err)
	content := func() string {
		text, err := os.ReadFile(name)
		if os.IsNotExist(err) {
			return ""
		}
		services.Must(t, err)
		return string(text)
	}
	if got := content(); got != "" {
		t.Errorf("the liveness file exists before the relay is live: %s", got)
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	synctest.Test(t, func(t *testing.T) {
		health := &fixedHealth{Live: true}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			file.Keep(ctx, health, log)
		}()
		synctest.Wait()
		first := content()
		time.Sleep(1500 * time.Millisecond) // of the bubble's clock
		second := content()
		if first == "" || second <= first {
			t.Errorf("got %q and then %q", first, second)
		}
		cancel()
		<-done
	})
	if got := content(); got != "" {
		t.Errorf("left behind: %s", got)
	}
	if left, err := os.ReadDir(filepath.Dir(name)); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

type changingHealth struct{ atomic.Pointer[relay.Health] }

func (c *changingHealth) Health() relay.Health { return *c.Load() }

func TestOnlyALiveRelayFeedsTheWatchdog(t *testing.T) {
	socket, said := systemdtest.Listen(t)
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", "60000")
	systemd, err := Supervised()
	services.Must(t, err)
	var health changingHealth
	health.Store(&relay.Health{Live: true, Ready: true, Role: "streaming"})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		systemd.Keep(ctx, ctx, &health, slog.New(slog.DiscardHandler))
	}()
	defer func() { cancel(); <-ended }()
	systemdtest.Await(t, said, "WATCHDOG=1")
	stuck := relay.Part{Name: "settle", Detail: "has not moved for 1m0s"}
	health.Store(&relay.Health{Role: "streaming", Parts: []relay.Part{stuck}})
	for range 5 {
		message := systemdtest.Await(t, said, "STATUS=not ready (streaming); settle: has not moved")
		if strings.Contains(message, "WATCHDOG=1") {
			t.Fatalf("a relay that is not live has fed the watchdog: %s", message)
		}
	}
	health.Store(&relay.Health{Live: true, Role: "streaming", Parts: []relay.Part{stuck}})
	systemdtest.Await(t, said, "WATCHDOG=1")
}

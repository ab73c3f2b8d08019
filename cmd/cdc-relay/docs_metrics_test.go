package main

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/notice"
	"github.com/cdc-relay/cdc-relay/publish/stdout"
	"github.com/cdc-relay/cdc-relay/relay"
)

// descriptions is a registry that records the descriptions of the collectors. A scrape would show a counter with labels
// only after its first event, and a sampled metric only with a database.
type descriptions struct {
	prometheus.Registerer
	names map[string]bool
}

func (d descriptions) Register(c prometheus.Collector) error {
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		c.Describe(descs)
	}()
	name := regexp.MustCompile(`fqName: "([^"]+)"`)
	for desc := range descs {
		d.names[name.FindStringSubmatch(desc.String())[1]] = true
	}
	return d.Registerer.Register(c)
}

// registered returns the names of all metrics that "run" can show, without those of Go.
func registered(t *testing.T) map[string]bool {
	t.Helper()
	registry := descriptions{newRegistry(nil), map[string]bool{"cdc_relay_build_info": true, "cdc_relay_log_lines_dropped_total": true}}
	must(t, registry.Register(notice.NewCounter()))
	cfg := defaultConfig()
	cfg.relay.DatabaseURL = "postgres://localhost/shop"
	r, err := relay.New(cfg.relay, stdout.New(stdout.Config{Writer: io.Discard}), slog.New(slog.DiscardHandler), registry)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Run(ctx); err != nil { // releases what New opened
		t.Fatal(err)
	}
	return registry.names
}

func TestDocsNameEveryMetricAndNoOther(t *testing.T) {
	documented := make(map[string]bool)
	for line := range strings.Lines(readDoc(t, "metrics.md")) {
		if m := regexp.MustCompile("^- `(cdc_relay_[a-z_]+)`").FindStringSubmatch(line); m != nil {
			if documented[m[1]] {
				t.Errorf("docs/metrics.md: %s is listed twice", m[1])
			}
			documented[m[1]] = true
		}
	}
	names := registered(t)
	if len(names) < 20 {
		t.Fatalf("only %d metrics are registered", len(names))
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !documented[name] {
			t.Errorf("docs/metrics.md has no line for %s", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(documented)) {
		if !names[name] {
			t.Errorf("docs/metrics.md has a line for %s, which does not exist", name)
		}
	}
}

// Every metric named anywhere in the docs exists.
func TestDocsNameOnlyExistingMetrics(t *testing.T) {
	names := registered(t)
	for _, doc := range []string{"metrics.md", "operations.md", "contract.md", "delivery.md", "runbook.md", "events.md"} {
		for _, name := range regexp.MustCompile(`cdc_relay_[a-z_]+_(total|seconds|rows|bytes|connected|held|flight|phase|state)`).FindAllString(readDoc(t, doc), -1) {
			if !names[name] {
				t.Errorf("docs/%s names %s, which does not exist", doc, name)
			}
		}
	}
}

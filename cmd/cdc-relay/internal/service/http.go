// Package service connects a long-running relay with what watches it: probes over HTTP, a liveness file, systemd.
package service

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/hosts"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/relay"
)

// Build describes the program in its metrics.
type Build struct{ Version, Commit string }

// NewRegistry returns a registry with the metrics of the process.
func NewRegistry(b Build) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "cdc_relay_build_info",
		Help: "Always 1; the labels are the version of cdc-relay.",
		ConstLabels: prometheus.Labels{
			"version": b.Version, "commit": b.Commit, "go_version": runtime.Version(),
		},
	})
	info.Set(1)
	registry.MustRegister(info,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

// Listen returns nil for an empty address.
func Listen(ctx context.Context, addr string) (net.Listener, error) {
	if addr == "" {
		return nil, nil //nolint:nilnil // no listener is wanted
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, failure.WithHint(
			fmt.Errorf("--http-addr: %w", err),
			"# choose another address by --http-addr (CDC_RELAY_HTTP_ADDR), or '' for none; "+
				"perhaps another cdc-relay has it",
		)
	}
	return listener, nil
}

// Reporter is the relay that is watched.
type Reporter interface{ Health() relay.Health }

// Judge looks at the outbox and returns the verdict, within a few seconds. Any number of requests may call it at once.
type Judge func(ctx context.Context) show.Verdict

// Pages is what the pages show.
type Pages struct {
	Reporter Reporter
	Judge    Judge
	Registry *prometheus.Registry
	// Hosts are the names by which clients may ask for more than their health.
	Hosts hosts.Known

	errors promhttp.Logger // of the libraries
}

// Serve answers requests until ctx is done. Without a listener it only waits.
func Serve(ctx context.Context, listener net.Listener, pages Pages, log *slog.Logger) error {
	if listener == nil {
		<-ctx.Done()
		return nil
	}
	pages.errors = event.Library(log)
	log.Info("serving /livez, /readyz and /metrics",
		"event", event.HTTPListening, "addr", listener.Addr().String())
	return Answer(ctx, listener, guard(pages.Hosts, newHandler(pages)), 50*time.Millisecond, log)
}

// Answer answers requests until ctx is done, which also ends theirs. Those in progress then get the time of grace. It
// closes the listener.
func Answer(
	ctx context.Context, listener net.Listener, handler http.Handler, grace time.Duration, log *slog.Logger,
) error {
	server := &http.Server{
		ErrorLog:          event.Library(log),
		Handler:           handler,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second, // unless the handler sets another deadline
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    64 << 10, // the console has addresses with many rows
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve HTTP: %w", err)
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if server.Shutdown(ending) != nil {
		return server.Close()
	}
	return nil
}

// guard rejects requests by the name of another site. /livez and /readyz stay open, for probes of any kind.
func guard(known hosts.Known, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		probe := r.URL.Path == "/livez" || r.URL.Path == "/readyz" && !r.URL.Query().Has("verbose")
		if probe || known.Has(r) || hosts.Local(r) {
			next.ServeHTTP(w, r)
			return
		}
		const text = "this relay does not answer to this host name: " +
			"ask by its address or the name of its machine, or use the name in --http-addr (CDC_RELAY_HTTP_ADDR)"
		http.Error(w, text, http.StatusMisdirectedRequest)
	})
}

func newHandler(pages Pages) http.Handler {
	reporter := pages.Reporter
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		health := reporter.Health()
		writeHealth(w, &strings.Builder{}, health, "live", health.Live, func(part relay.Part) bool { return part.Live })
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		var b strings.Builder
		if r.URL.Query().Has("verbose") {
			pages.Judge(r.Context()).Print(&b, show.Plain)
		}
		health := reporter.Health()
		writeHealth(w, &b, health, "ready", health.Ready, func(part relay.Part) bool { return part.Ready })
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(pages.Registry, promhttp.HandlerOpts{
		Registry: pages.Registry, EnableOpenMetrics: true, ErrorLog: pages.errors,
	}))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "cdc-relay\n/livez\n/readyz\n/metrics\n")
	})
	return mux
}

// writeHealth adds one line for the whole relay and one for each part to the text, and sends it.
func writeHealth(
	w http.ResponseWriter, b *strings.Builder, health relay.Health, word string, well bool,
	partWell func(relay.Part) bool,
) {
	fmt.Fprintf(b, "%s", verdict(word, well))
	if health.Role != "" {
		fmt.Fprintf(b, " (%s)", health.Role)
	}
	b.WriteByte('\n')
	for _, part := range health.Parts {
		fmt.Fprintf(b, "%s: %s", part.Name, verdict(word, partWell(part)))
		if part.Detail != "" {
			fmt.Fprintf(b, ", %s", show.OneLine(part.Detail))
		}
		b.WriteByte('\n')
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if !well {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	writeSafe(w, []byte(b.String()))
}

// writeSafe sends a text for a terminal: it contains errors of servers.
func writeSafe(w http.ResponseWriter, text []byte) {
	out := show.SafeWriter{Out: w, Redacts: true}
	out.Write(text) //nolint:errcheck // the client may be gone
}

func verdict(word string, well bool) string {
	if well {
		return word
	}
	return "not " + word
}

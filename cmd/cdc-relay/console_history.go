package main

import (
	"context"
	"fmt"
	"html/template"
	"strings"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// history holds the samples of the last hour.
type history struct {
	look *show.Sampler
	mu   struct {
		sync.Mutex
		points []point
		view   *show.Stats
		hosts  []operator.RelayHost
		failed error
		taken  time.Time
	}
}

// point is one sample. An unknown value is negative.
type point struct{ perSecond, depth, oldest, p50, p99 float64 }

const (
	historyEvery  = 5 * time.Second
	historyPoints = int(time.Hour / historyEvery)
	// leastPoints is the minimum width of a chart.
	leastPoints = int(2 * time.Minute / historyEvery)
)

func newHistory(cfg *config) *history {
	return &history{look: &show.Sampler{
		Relay: &cfg.relay, Top: cfg.looking.top, Exact: cfg.looking.exact, Watch: true, Live: show.NewLiveRelay(cfg.httpAddr),
	}}
}

// keep takes a sample at once and then at a fixed interval, until ctx is done.
func (h *history) keep(ctx context.Context, s *console) {
	ticker := time.NewTicker(historyEvery)
	defer ticker.Stop()
	for {
		var view show.Stats
		var hosts []operator.RelayHost
		err := s.at(ctx, s.desks.samples, func(ctx context.Context, d *desk) (err error) {
			h.look.Tables = d.Tables
			if view, err = h.look.Take(ctx); err == nil {
				hosts, err = d.RelayHosts(ctx)
			}
			return err
		})
		if ctx.Err() != nil {
			return
		}
		h.add(view, hosts, err)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (h *history) add(view show.Stats, hosts []operator.RelayHost, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.failed, h.mu.taken = err, time.Now()
	if err != nil {
		return
	}
	h.mu.view, h.mu.hosts = &view, hosts
	p := point{-1, -1, -1, -1, -1}
	if view.QueueDepth != nil {
		p.depth = float64(*view.QueueDepth)
	}
	if view.OldestPendingSeconds != nil {
		p.oldest = *view.OldestPendingSeconds
	}
	if r := view.Relay; r != nil && r.Error == nil {
		p.perSecond = r.PublishedPerSecond
		if r.Latency != nil {
			p.p50, p.p99 = r.Latency.P50Seconds*1000, r.Latency.P99Seconds*1000
		}
	}
	h.mu.points = append(h.mu.points, p)
	if extra := len(h.mu.points) - historyPoints; extra > 0 {
		h.mu.points = h.mu.points[extra:]
	}
}

// overview is the data of the overview page.
type overview struct {
	Facts  facts
	Charts []chart
	Fails  []show.Failing
	Failed string
}

// facts are pairs of name and value.
type facts [][2]string

func (f *facts) Row(columns ...string) {
	*f = append(*f, [2]string{columns[0], strings.Join(columns[1:], " ")})
}

type chart struct {
	Title, Now, Most string
	Line             template.HTML
}

func (h *history) overview(cfg *config, p *process) overview {
	h.mu.Lock()
	defer h.mu.Unlock()
	var o overview
	if h.mu.failed != nil {
		o.Failed = string(show.Redact([]byte(show.OneLine(h.mu.failed.Error()))))
	}
	if h.mu.view == nil {
		return o
	}
	h.mu.view.Facts(&o.Facts, &cfg.relay, show.Plain)
	var hosts []string
	for _, host := range h.mu.hosts {
		hosts = append(hosts, fmt.Sprintf("%s (%s)", host.Address, show.Plural(host.Connections, "connection")))
	}
	o.Facts.Row("relays connected from", show.OrElse(strings.Join(hosts, ", "), "none visible to this role"))
	o.Fails = h.mu.view.TopFailing
	for _, c := range []struct {
		title, unit string
		of          func(point) float64
	}{
		{"Published", "/s", func(p point) float64 { return p.perSecond }},
		{"Queue depth", " rows", func(p point) float64 { return p.depth }},
		{"Oldest pending", " s", func(p point) float64 { return p.oldest }},
		{"Commit to confirm, p50", " ms", func(p point) float64 { return p.p50 }},
		{"Commit to confirm, p99", " ms", func(p point) float64 { return p.p99 }},
	} {
		o.Charts = append(o.Charts, chartOf(c.title, c.unit, h.mu.points, c.of))
	}
	return o
}

// chartOf draws a line for each stretch of known values. The chart covers the time since the first sample, at most an
// hour.
func chartOf(title, unit string, points []point, of func(point) float64) chart {
	const width, height = 360.0, 60.0
	most, now := 0.0, -1.0
	for _, p := range points {
		most = max(most, of(p))
		now = of(p)
	}
	c := chart{Title: title, Now: "unknown", Most: fmt.Sprintf("%.4g%s", most, unit)}
	if now >= 0 {
		c.Now = fmt.Sprintf("%.4g%s", now, unit)
	}
	var b strings.Builder
	last := max(len(points), leastPoints) - 1
	first := last + 1 - len(points)
	pen := "M"
	for i, p := range points {
		v := of(p)
		if v < 0 {
			pen = "M"
			continue
		}
		fmt.Fprintf(&b, "%s%.1f %.1f", pen, float64(first+i)*width/float64(last), height-2-v/max(most, 1e-9)*(height-4))
		pen = "L"
	}
	c.Line = template.HTML(fmt.Sprintf(`<svg viewBox="0 0 %g %g" preserveAspectRatio="none" role="img" aria-label="%s, last hour: now %s, at most %s"><path d="%s"/></svg>`, //nolint:gosec // it contains only numbers and our own words
		width, height, title, c.Now, c.Most, b.String()))
	return c
}

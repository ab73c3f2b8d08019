package console

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/relay"
)

// history holds the samples of the last hour.
type history struct {
	// sampler belongs to keepHistory.
	sampler *show.Sampler
	mu      struct {
		sync.Mutex
		points []point
		view   *show.Stats
		failed error
	}
}

const (
	historyEvery = 5 * time.Second
	mostPoints   = int(time.Hour / historyEvery)
)

func newHistory(cfg Config) *history {
	return &history{sampler: &show.Sampler{
		Relay: cfg.Relay,
		Top:   cfg.Limits.Failures,
		Exact: cfg.Limits.CountAll,
		Watch: true,
		Live:  show.NewLiveRelay(cfg.RelayAddr),
	}}
}

// keepHistory takes a sample at once and then at a fixed interval, until ctx is done.
func (c *Console) keepHistory(ctx context.Context) {
	ticker := time.NewTicker(historyEvery)
	defer ticker.Stop()
	for {
		var view show.Stats
		err := c.with(ctx, c.sessions.samples, func(ctx context.Context, tables *operator.Tables) (err error) {
			c.history.sampler.Tables = tables
			view, err = c.history.sampler.Take(ctx)
			return err
		})
		if ctx.Err() != nil {
			return
		}
		c.history.add(view, err)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (h *history) add(view show.Stats, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.failed = err
	if err != nil {
		return
	}
	h.mu.view = &view
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
	if extra := len(h.mu.points) - mostPoints; extra > 0 {
		h.mu.points = h.mu.points[extra:]
	}
}

// verdict returns the verdict of the last sample; nil: there is none yet.
func (h *history) verdict() *show.Verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.mu.failed != nil:
		failed := show.Unreadable(h.mu.failed)
		return &failed
	case h.mu.view == nil:
		return nil
	}
	return &h.mu.view.Verdict
}

// overview is the data of the overview page.
type overview struct {
	Facts  facts
	Charts []chart
	Fails  []show.Failing
	// Header is what failures are grouped by besides the routing key; "": nothing.
	Header string
	Failed string
}

// overviewPage shows the last sample, and the charts of all samples.
func (c *Console) overviewPage(context.Context, *operator.Tables, *http.Request) (any, error) {
	return c.history.overview(c.cfg.Relay), nil
}

func (h *history) overview(cfg *relay.Config) overview {
	h.mu.Lock()
	defer h.mu.Unlock()
	var o overview
	if h.mu.failed != nil {
		o.Failed = string(show.Redact([]byte(show.OneLine(h.mu.failed.Error()))))
	}
	if h.mu.view == nil {
		return o
	}
	h.mu.view.Facts(&o.Facts, cfg, show.Plain)
	o.Fails, o.Header = h.mu.view.TopFailing, cfg.MetricsHeader
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

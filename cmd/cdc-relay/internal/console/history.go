package console

import (
	"context"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// history holds the samples of the last minutes, which the charts show.
type history struct {
	// sampler belongs to keepHistory.
	sampler *show.Sampler
	mu      struct {
		sync.Mutex
		// points has one for each interval, up to the newest sample, which is of the time at.
		points []point
		at     time.Time
		newest *sample
		failed error
	}
}

// sample is what keepHistory has read at one time.
type sample struct {
	view show.Stats
	// recent counts the messages that were published in the last hour, if they are kept.
	recent operator.Count
	kept   bool
}

const (
	historyEvery = 5 * time.Second
	mostPoints   = int(15*time.Minute/historyEvery) + 1
)

func newHistory(cfg Config) *history {
	return &history{sampler: &show.Sampler{
		Source: cfg.Source,
		Top:    cfg.Limits.Failures,
		Exact:  cfg.Limits.CountAll,
	}}
}

// keepHistory takes a sample at once and then at a fixed interval, until ctx is done.
func (c *Console) keepHistory(ctx context.Context) {
	ticker, at := time.NewTicker(historyEvery), time.Now()
	defer ticker.Stop()
	for {
		var taken sample
		err := c.with(ctx, c.sessions.samples, func(ctx context.Context, tables *operator.Tables) (err error) {
			c.history.sampler.Tables = tables
			if taken.view, err = c.history.sampler.Take(ctx); err != nil {
				return err
			}
			taken.recent, taken.kept, _ = tables.PublishedSince(ctx, time.Hour) // the role may not read the history
			return nil
		})
		if ctx.Err() != nil {
			return
		}
		c.history.add(taken, at, err)
		select {
		case <-ctx.Done():
			return
		case at = <-ticker.C:
		}
	}
}

// add puts a sample behind the others. Intervals without a sample get a point without values.
func (h *history) add(taken sample, at time.Time, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.failed = err
	if err != nil {
		return
	}
	h.mu.newest = &taken
	missed := int(at.Sub(h.mu.at).Round(historyEvery)/historyEvery) - 1
	if missed < 0 || missed >= mostPoints { // it is the first sample, or the clock was set
		h.mu.points, missed = nil, 0
	}
	for range missed {
		h.mu.points = append(h.mu.points, pointOf(show.Stats{}))
	}
	h.mu.points = append(h.mu.points, pointOf(taken.view))
	h.mu.points = h.mu.points[max(0, len(h.mu.points)-mostPoints):]
	h.mu.at = at.Round(0) // the clock on the wall, which also counts while the machine sleeps
}

func pointOf(view show.Stats) point {
	p := point{unknown, unknown, unknown, unknown, unknown}
	if view.QueueDepth != nil {
		p[depth] = float64(*view.QueueDepth)
	}
	if view.OldestPendingSeconds != nil {
		p[oldest] = *view.OldestPendingSeconds
	}
	if leading := view.Relays.Leading(); len(leading) > 0 {
		p[perSecond] = view.PerSecond()
		p[p50], p[p99] = noMessages, noMessages
		if l := leading[0].Latency; l != nil {
			p[p50], p[p99] = l.P50Seconds*1000, l.P99Seconds*1000
		}
	}
	return p
}

// verdict returns the verdict of the last sample; nil: there is none yet.
func (h *history) verdict() *show.Verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.mu.failed != nil:
		failed := show.Unreadable(h.sampler.Source.Known().Table, h.mu.failed)
		return &failed
	case h.mu.newest == nil:
		return nil
	}
	return &h.mu.newest.view.Verdict
}

// verdictShown is the verdict on a page.
type verdictShown struct {
	*show.Verdict
	// Short: the page shows its sentence, and the rest only on demand.
	Short bool
}

// Whole is the text to copy.
func (v verdictShown) Whole() string {
	var b strings.Builder
	v.Print(&b, show.Plain)
	for _, line := range []string{v.Alert, v.Runbook} {
		if line != "" {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

// verdict renders the verdict for the page at this path.
func (c *Console) verdict(path string) (template.HTML, error) {
	return c.render("verdict", verdictShown{c.history.verdict(), path != "/"})
}

// view returns the last sample; false: there is none.
func (h *history) view() (v show.Stats, sampled bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.newest != nil {
		v = h.mu.newest.view
	}
	return v, h.mu.newest != nil
}

// overview is the data of the overview page.
type overview struct {
	Tiles []tile
	// Depth is the number of rows in the outbox.
	Depth  string
	Facts  facts
	Charts charts
	Fails  table
	Failed string
}

// charts show the time from the first point to the last. Step is the seconds between two points.
type charts struct {
	From, To time.Time
	Step     float64
	All      []chart
}

// overviewPage shows the last sample, and the charts of the last minutes.
func (c *Console) overviewPage(context.Context, *operator.Tables, *http.Request) (any, error) {
	return c.history.overview(), nil
}

func (h *history) overview() overview {
	h.mu.Lock()
	defer h.mu.Unlock()
	var o overview
	if h.mu.failed != nil {
		o.Failed = string(show.Redact([]byte(show.OneLine(h.mu.failed.Error()))))
	}
	if h.mu.newest == nil {
		return o
	}
	view := h.mu.newest.view
	o.Tiles, o.Depth = tilesOf(*h.mu.newest), show.Count(view.Count("queue_depth"))
	view.ServerFacts(&o.Facts, view.Settings.Config, show.Plain)
	o.Facts.Row("as of", show.Time(view.At))
	o.Fails = failing(view)
	o.Charts = h.charts()
	return o
}

// charts needs the lock.
func (h *history) charts() charts {
	drawn := charts{To: h.mu.at.UTC(), Step: historyEvery.Seconds()}
	drawn.From = drawn.To.Add(-time.Duration(len(h.mu.points)-1) * historyEvery)
	for _, s := range allSeries() {
		drawn.All = append(drawn.All, s.chart(h.mu.points, s.missing(h.mu.newest.view)))
	}
	return drawn
}

// missing says why the newest value is unknown: which relay does not answer, or that the database is slow.
func (s series) missing(v show.Stats) string {
	if first := s.lines[0].value; first == depth || first == oldest {
		return "the query took too long"
	}
	return show.OrElse(strings.Join(v.Relays.Missed(), "; "), "no relay answers")
}

// failing are the causes of most failures, with links to their messages.
func failing(view show.Stats) table {
	t := table{Label: "Failing most"}
	for _, f := range view.TopFailing {
		key, query := show.Plural(f.RoutingKeys, "key"), url.Values{"exchange": {f.Exchange}, "reason": {f.Reason}}
		if f.RoutingKey != nil {
			key = inQuotes(*f.RoutingKey)
		}
		page := "/dead-letters?"
		if f.Dead == 0 {
			page = "/waiting?"
			query.Set("state", "retrying")
		}
		cells := []cell{
			{Head: "Reason", Text: show.OrElse(f.Reason, "no reason"), Class: "word", Link: page + query.Encode()},
			{Head: "Exchange", Text: f.Exchange},
			{Head: "Routing key", Text: key},
		}
		if name := view.Settings.MetricsHeader; name != "" && f.Header != nil {
			selects := url.Values{"header": {name + "=" + operator.EscapePattern(*f.Header)}}
			link := "/dead-letters?" + selects.Encode()
			cells = append(cells, cell{Head: name, Text: inQuotes(*f.Header), Link: link})
		}
		t.add(tableRow{Cells: append(cells,
			cell{Head: "Retrying", Text: show.Number(f.Retrying)}, cell{Head: "Dead", Text: show.Number(f.Dead)},
			cell{Head: "What to do", Text: f.Fix, Class: "why"},
			cell{Head: "Example", Text: f.Example, Class: "text"})})
	}
	t.done()
	return t
}

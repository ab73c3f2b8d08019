package bench

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/cdc-relay/cdc-relay/test/bench/chart"
)

// drawing is a chart that can be written.
type drawing interface{ Write(w io.Writer) error }

// WriteCharts writes the charts with results as SVG files into a folder.
func (r *Report) WriteCharts(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	charts := map[string]drawing{}
	if c, ok := r.latencyChart(); ok {
		charts["latency"] = c
	}
	if c, ok := r.backlogChart(); ok {
		charts["backlog"] = c
	}
	if c, ok := r.costChart(); ok {
		charts["cost"] = c
	}
	for name, c := range r.heldCharts() {
		charts[name] = c
	}
	var errs []error
	for name, c := range charts {
		errs = append(errs, writeChart(filepath.Join(folder, name+".svg"), c))
	}
	return errors.Join(errs...)
}

func writeChart(file string, c drawing) error {
	to, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(c.Write(to), to.Close())
}

// latencyChart shows the whole distribution. The last percent is as wide as the steps before it.
func (r *Report) latencyChart() (chart.Lines, bool) {
	c := chart.Lines{
		Title: "Latency, commit to consumer",
		X: chart.Axis{Label: "share of the messages within this latency", Scale: chart.Log, Ticks: []chart.Tick{
			{At: 1, Text: "0"},
			{At: 2, Text: "50 %"},
			{At: 10, Text: "90 %"},
			{At: 100, Text: "99 %"},
			{At: 1000, Text: "99.9 %"},
			{At: 10000, Text: "99.99 %"},
		}},
		Y: chart.Axis{Label: "ms", Scale: chart.Log},
	}
	for _, name := range []string{"relay-500", "direct-500", "relay-2000", "direct-2000"} {
		results := r.Of(name)
		if len(results) == 0 {
			continue
		}
		line := chart.Line{Name: name, Dashed: strings.HasPrefix(name, "direct")}
		for i, share := range CurveAt() {
			took := median(results, func(one Result) float64 { return one.Curve[i] })
			line.Points = append(line.Points, chart.Point{X: 1 / (1 - share), Y: max(took, 0.1)})
		}
		c.Lines = append(c.Lines, line)
	}
	return c, len(c.Lines) > 0
}

func (r *Report) backlogChart() (chart.Lines, bool) {
	c := chart.Lines{
		Title: "Throughput of a drain, by the size of the backlog",
		X:     chart.Axis{Label: "waiting rows", Scale: chart.Log},
		Y:     chart.Axis{Label: "messages a second"},
	}
	relay := chart.Line{Name: "relay"}
	for _, one := range Cases(r.Settings) {
		if results := r.Of(one.Name); strings.HasPrefix(one.Name, BacklogPrefix) && len(results) > 0 {
			rate := median(results, func(r Result) float64 { return r.Rate })
			relay.Points = append(relay.Points, chart.Point{X: float64(results[0].Messages), Y: rate})
		}
	}
	if len(relay.Points) < 2 {
		return c, false
	}
	c.Lines = append(c.Lines, relay)
	if limits := r.Of("publish"); len(limits) > 0 {
		rate := median(limits, func(r Result) float64 { return r.Rate })
		c.Lines = append(c.Lines, chart.Line{Name: "limit: publish", Dashed: true, Points: []chart.Point{
			{X: relay.Points[0].X, Y: rate}, {X: relay.Points[len(relay.Points)-1].X, Y: rate},
		}})
	}
	return c, true
}

func (r *Report) costChart() (chart.Bars, bool) {
	c := chart.Bars{
		Title: "Processor time of a message", Y: chart.Axis{Label: "µs"},
		Parts: []string{"relay, or client", "Postgres", "RabbitMQ"},
	}
	for _, name := range []string{
		"publish", "drain-poller", "drain", "drain-keyed", "stream", "stream-keyed", "relay-2000",
	} {
		if results := r.Of(name); len(results) > 0 {
			c.Bars = append(c.Bars, chart.Bar{Name: name, Parts: []float64{
				median(results, func(r Result) float64 { return r.CPU.Measured }),
				median(results, func(r Result) float64 { return r.CPU.Postgres }),
				median(results, func(r Result) float64 { return r.CPU.RabbitMQ }),
			}})
		}
	}
	return c, len(c.Bars) > 0
}

// heldCharts compare a long run with an open transaction to one without.
func (r *Report) heldCharts() map[string]drawing {
	charts := map[string]drawing{}
	for _, one := range []struct {
		name, title, unit string
		number            func(Slice) float64
	}{
		{
			"held-latency", "p99 of the latency at 1,000/s, with an open transaction", "ms",
			func(s Slice) float64 { return s.P99 },
		},
		{
			"held-postgres", "Postgres at 1,000/s, with an open transaction", "µs of processor time a message",
			func(s Slice) float64 { return s.CPU.Postgres },
		},
	} {
		c := chart.Lines{Title: one.title, X: chart.Axis{Label: "minutes"}, Y: chart.Axis{Label: one.unit}}
		for _, run := range []struct{ name, text string }{{"long-held", "held"}, {"long", "none held"}} {
			results := r.Of(run.name)
			if len(results) == 0 || len(results[0].Series) < 2 {
				continue
			}
			line := chart.Line{Name: run.text, Dashed: run.name == "long"}
			for _, slice := range results[0].Series {
				line.Points = append(line.Points, chart.Point{X: slice.Second / 60, Y: one.number(slice)})
			}
			c.Lines = append(c.Lines, line)
		}
		if len(c.Lines) > 0 {
			charts[one.name] = c
		}
	}
	return charts
}

package bench

import (
	"errors"
	"os"
	"strings"

	"github.com/cdc-relay/cdc-relay/test/bench/chart"
)

// WriteChart draws the whole distribution of the latencies as SVG. The last percent is as wide as the steps before it.
func (r *Report) WriteChart(file string) error {
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
	to, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(c.Write(to), to.Close())
}

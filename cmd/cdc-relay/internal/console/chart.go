package console

import (
	"fmt"
	"html/template"
	"strings"
	"time"
)

// point is one sample. An unknown value is negative.
type point struct{ perSecond, depth, oldest, p50, p99 float64 }

// chart is a line with its newest and its highest value.
type chart struct {
	Title, Now, Most string
	Line             template.HTML
}

// leastPoints is the minimum width of a chart.
const leastPoints = int(2 * time.Minute / historyEvery)

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
		x, y := float64(first+i)*width/float64(last), height-2-v/max(most, 1e-9)*(height-4)
		fmt.Fprintf(&b, "%s%.1f %.1f", pen, x, y)
		pen = "L"
	}
	const svg = `<svg viewBox="0 0 %g %g" preserveAspectRatio="none" role="img" ` +
		`aria-label="%s, last hour: now %s, at most %s"><path d="%s"/></svg>`
	line := fmt.Sprintf(svg, width, height, title, c.Now, c.Most, b.String())
	c.Line = template.HTML(line) //nolint:gosec // it contains only numbers and our own words
	return c
}

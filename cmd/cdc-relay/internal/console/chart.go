package console

import (
	"fmt"
	"html/template"
	"math"
	"strings"
	"time"
)

// chart is the picture of one series. Without JavaScript it is complete; the script adds the values under the pointer.
type chart struct {
	Title, Now string
	// Peak is the highest value in words; "": none is known. Alert is the threshold; "": there is none.
	Peak, Alert string
	// Over: the newest value is above the threshold.
	Over bool
	// Lines has a name and the texts of all values for each line, separated by "|".
	Lines []chartLine
	// From is the time of the first value in seconds since 1970, Step the seconds between two values.
	From, Step int64
	// Times are the labels of the time axis, Axis those of the values, from the top.
	Times []template.HTML
	Axis  []string
	SVG   template.HTML
}

type chartLine struct {
	Number           int
	Name, Now, Texts string
}

// now returns the newest value of a line in words.
func (s series) now(points []point, of line) string {
	if len(points) == 0 {
		return "unknown"
	}
	return s.textOf(of.of(points[len(points)-1]))
}

// chartOf draws the samples of a window.
func chartOf(s series, points []point, w window) chart {
	c := chart{Title: s.Title, From: w.from.Unix(), Step: int64(w.step / time.Second), Times: w.labels()}
	peak, known := 0.0, false
	var all [][]float64
	for i, l := range s.lines {
		values := w.values(points, l)
		texts := make([]string, len(values))
		for n, v := range values {
			if math.IsNaN(v) {
				continue
			}
			texts[n] = s.textOf(v)
			if i == 0 && v >= 0 {
				peak, known = max(peak, v), true
			}
		}
		all = append(all, values)
		c.Lines = append(c.Lines, chartLine{i + 1, l.name, s.now(points, l), strings.Join(texts, "|")})
	}
	if known {
		c.Peak = "peak " + s.text(peak)
	}
	c.Now = c.Lines[0].Now
	c.Over = s.alert > 0 && len(points) > 0 && s.lines[0].of(points[len(points)-1]) > s.alert
	if s.alert > 0 {
		c.Alert = "alert above " + s.text(s.alert)
	}
	top := s.top(peak)
	if s.alert > 0 && peak >= s.alert/5 {
		top = s.top(max(peak, s.alert))
	}
	c.Axis = []string{s.axis(top), s.axis(top / 2), "0"}
	c.SVG = template.HTML(c.draw(s, w, all, top)) //nolint:gosec // it contains only numbers and our own words
	return c
}

// layout is that of the times below the charts.
func (w window) layout() string {
	if w.end().Sub(w.from) < 10*time.Minute {
		return "15:04:05"
	}
	return "15:04"
}

// labels returns the first, the middle and the last time.
func (w window) labels() (labels []template.HTML) {
	if w.steps == 0 {
		return nil
	}
	for _, at := range []time.Time{w.from, w.from.Add(w.end().Sub(w.from) / 2), w.end()} {
		labels = append(labels, clock(at, w.layout()))
	}
	return labels
}

// draw returns the SVG. Positions are percentages: only the lines are stretched.
func (c chart) draw(s series, w window, all [][]float64, top float64) string {
	var b strings.Builder
	about := []string{c.Title}
	if len(c.Times) > 0 {
		from, to := w.from.UTC().Format(w.layout()), w.end().UTC().Format(w.layout())
		about = append(about, fmt.Sprintf("from %s to %s UTC", from, to))
	}
	about = append(about, "now "+c.Now)
	for _, more := range []string{c.Peak, c.Alert} {
		if more != "" {
			about = append(about, more)
		}
	}
	fmt.Fprintf(&b, `<svg class="plot" role="img" aria-label="%s">`, strings.Join(about, ", "))
	for _, part := range []float64{1, 0.5, 0} {
		fmt.Fprintf(&b, `<line class="grid" x1="0" x2="100%%" y1="%[1]g%%" y2="%[1]g%%"/>`, 100-100*part)
	}
	b.WriteString(`<svg viewBox="0 0 1000 100" preserveAspectRatio="none" width="100%" height="100%" ` +
		`overflow="visible">`)
	for i, values := range all {
		lines, area := w.paths(values, top)
		if i == 0 {
			fmt.Fprintf(&b, `<path class="area" d="%s"/>`, area)
		}
		fmt.Fprintf(&b, `<path class="line line-%d" d="%s"/>`, i+1, lines)
	}
	b.WriteString(`</svg>`)
	if s.alert > 0 && s.alert <= top {
		fmt.Fprintf(&b, `<line class="alert" x1="0" x2="100%%" y1="%[1]g%%" y2="%[1]g%%"/>`, 100-100*s.alert/top)
	}
	b.WriteString(`<line class="cursor" x1="0" x2="0" y1="0" y2="100%"/></svg>`)
	return b.String()
}

// paths returns a path with a line for each stretch of known values, and one with the areas below them.
func (w window) paths(values []float64, top float64) (lines, areas string) {
	var line, area strings.Builder
	x := func(i int) float64 { return float64(i) * 1000 / float64(max(1, w.steps-1)) }
	before := -1
	for i, v := range values {
		if math.IsNaN(v) || v < 0 {
			continue
		}
		y := 100 - 100*v/top
		if before < 0 || !w.joins(before, i) {
			if before >= 0 {
				fmt.Fprintf(&area, "V100Z")
			}
			fmt.Fprintf(&line, "M%.1f %.1fh0", x(i), y) // a lone value is a dot
			fmt.Fprintf(&area, "M%.1f 100V%.1f", x(i), y)
		} else {
			fmt.Fprintf(&line, "L%.1f %.1f", x(i), y)
			fmt.Fprintf(&area, "L%.1f %.1f", x(i), y)
		}
		before = i
	}
	if before >= 0 {
		area.WriteString("V100Z")
	}
	return line.String(), area.String()
}

// Package chart draws small charts as SVG, with only what the benchmark needs.
package chart

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
)

// Scale maps numbers to positions on an axis.
type Scale uint8

// The scales.
const (
	Linear Scale = iota // from 0
	Log                 // powers of ten
)

// Axis is one axis of a chart.
type Axis struct {
	Label string
	Scale Scale
	// Ticks are the marks of the axis; none: chosen from the numbers.
	Ticks []Tick
}

// Tick is a mark on an axis.
type Tick struct {
	At   float64
	Text string
}

// Point is one point of a line.
type Point struct{ X, Y float64 }

// Line is a series with a name. Dashed lines are for limits.
type Line struct {
	Name   string
	Points []Point
	Dashed bool
}

// Lines is a chart of lines.
type Lines struct {
	Title string
	X, Y  Axis
	Lines []Line
}

const (
	width, height             = 720, 400
	left, right, top, bottom  = 70, 160, 40, 50
	plotWidth, plotHeight     = width - left - right, height - top - bottom
	legendX, legendY, legendH = left + plotWidth + 12, top + 10, 18
)

// colour returns a colour that most people can distinguish from the others, on white and on black.
func colour(i int) string {
	colours := []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"}
	return colours[i%len(colours)]
}

// Write draws the chart.
func (c Lines) Write(w io.Writer) error {
	var points []Point
	for _, line := range c.Lines {
		points = append(points, line.Points...)
	}
	if len(points) == 0 {
		return fmt.Errorf("the chart %q has no points", c.Title)
	}
	x := newMapping(c.X, plotWidth, points, func(p Point) float64 { return p.X })
	y := newMapping(c.Y, plotHeight, points, func(p Point) float64 { return p.Y })
	var svg strings.Builder
	begin(&svg, c.Title)
	drawAxes(&svg, c.X, c.Y, x, y)
	for i, line := range c.Lines {
		drawLine(&svg, line, i, x, y)
	}
	svg.WriteString("</svg>\n")
	_, err := io.WriteString(w, svg.String())
	return err
}

func begin(svg *strings.Builder, title string) {
	fmt.Fprintf(svg, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" `, width, height)
	svg.WriteString(`font-family="sans-serif" font-size="12">` + "\n")
	fmt.Fprintf(svg, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, height)
	text(svg, left, top-18, "start", `font-size="14" font-weight="bold"`, title)
}

func text(svg *strings.Builder, x, y float64, anchor, more, words string) {
	fmt.Fprintf(svg, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="#222" %s>%s</text>`+"\n",
		x, y, anchor, more, html.EscapeString(words))
}

func drawAxes(svg *strings.Builder, xAxis, yAxis Axis, x, y mapping) {
	for _, tick := range y.ticks {
		at := float64(top+plotHeight) - y.place(tick.At)
		fmt.Fprintf(svg, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#ddd"/>`+"\n", left, left+plotWidth, at, at)
		text(svg, left-6, at+4, "end", "", tick.Text)
	}
	for _, tick := range x.ticks {
		at := left + x.place(tick.At)
		fmt.Fprintf(svg, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#ddd"/>`+"\n", at, at, top, top+plotHeight)
		text(svg, at, top+plotHeight+16, "middle", "", tick.Text)
	}
	text(svg, left+plotWidth/2, height-12, "middle", "", xAxis.Label)
	text(svg, 16, top+plotHeight/2, "middle", fmt.Sprintf(`transform="rotate(-90 16 %d)"`, top+plotHeight/2),
		yAxis.Label)
}

func drawLine(svg *strings.Builder, line Line, i int, x, y mapping) {
	style := fmt.Sprintf(`fill="none" stroke="%s" stroke-width="2"`, colour(i))
	if line.Dashed {
		style += ` stroke-dasharray="6 4"`
	}
	var places []string
	for _, p := range line.Points {
		places = append(places, fmt.Sprintf("%.1f,%.1f", left+x.place(p.X), float64(top+plotHeight)-y.place(p.Y)))
	}
	fmt.Fprintf(svg, `<polyline points="%s" %s/>`+"\n", strings.Join(places, " "), style)
	at := legendY + i*legendH
	fmt.Fprintf(svg, `<line x1="%d" x2="%d" y1="%d" y2="%d" %s/>`+"\n", legendX, legendX+20, at, at, style)
	text(svg, legendX+26, float64(at+4), "start", "", line.Name)
}

// mapping converts numbers to distances from the axis.
type mapping struct {
	scale       Scale
	least, most float64
	length      float64
	ticks       []Tick
}

func newMapping(axis Axis, length float64, points []Point, number func(Point) float64) mapping {
	m := mapping{scale: axis.Scale, least: math.Inf(1), most: math.Inf(-1), length: length, ticks: axis.Ticks}
	for _, p := range points {
		m.least, m.most = min(m.least, number(p)), max(m.most, number(p))
	}
	for _, tick := range axis.Ticks {
		m.least, m.most = min(m.least, tick.At), max(m.most, tick.At)
	}
	if axis.Scale == Linear {
		m.least = min(m.least, 0)
		if len(m.ticks) == 0 {
			m.linearTicks()
		}
	} else {
		m.least = math.Pow(10, math.Floor(math.Log10(max(m.least, 1e-9))))
		m.most = math.Pow(10, math.Ceil(math.Log10(max(m.most, 1e-9))))
		if len(m.ticks) == 0 {
			m.logTicks()
		}
	}
	if m.most <= m.least {
		m.most = m.least + 1
	}
	return m
}

// linearTicks places four to eight round numbers.
func (m *mapping) linearTicks() {
	span := max(m.most-m.least, 1e-9)
	step := math.Pow(10, math.Floor(math.Log10(span/4)))
	for _, factor := range []float64{5, 2} {
		if span/(step*factor) >= 4 {
			step *= factor
			break
		}
	}
	m.most = step * math.Ceil(m.most/step)
	for at := step * math.Floor(m.least/step); at <= m.most+step/2; at += step {
		m.ticks = append(m.ticks, Tick{at, short(at)})
	}
}

func (m *mapping) logTicks() {
	for at := m.least; at <= m.most*1.01; at *= 10 {
		m.ticks = append(m.ticks, Tick{at, short(at)})
	}
}

func (m *mapping) place(number float64) float64 {
	if m.scale == Log {
		return m.length * math.Log10(max(number, m.least)/m.least) / math.Log10(m.most/m.least)
	}
	return m.length * (number - m.least) / (m.most - m.least)
}

func short(number float64) string {
	switch {
	case number >= 1e6:
		return fmt.Sprintf("%gM", number/1e6)
	case number >= 1e4:
		return fmt.Sprintf("%gk", number/1e3)
	}
	return fmt.Sprintf("%.4g", number)
}

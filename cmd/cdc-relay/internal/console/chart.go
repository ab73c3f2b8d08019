package console

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// point has the values of one sample, by the constants below. An unknown value is negative.
type point [5]float64

const (
	perSecond = iota
	depth
	oldest
	p99
	p50
)

// The values of a sample without one: of what nobody told, and of a latency without a message.
const (
	unknown    = -1
	noMessages = -2
)

// series says what one chart shows.
type series struct {
	title string
	lines []line
	// text formats a value with its unit. top returns the end of the value axis for a peak.
	text func(float64) string
	top  func(float64) float64
	// alert is the threshold of the alert about this value; 0: none.
	alert float64
}

// line is one line of a chart. Its name is "" if the chart has one line.
type line struct {
	name  string
	value int
}

func allSeries() []series {
	return []series{
		{"Published", []line{{"", perSecond}}, perSecondText, topOf, 0},
		{"Queue depth", []line{{"", depth}}, rowsText, topOfRows, show.MostDepth},
		{"Oldest pending", []line{{"", oldest}}, secondsText, topOfSeconds, show.LateAfter.Seconds()},
		{
			"Commit to confirm",
			[]line{{"p99", p99}, {"p50", p50}},
			millisecondsText, topOf,
			1000 * show.SlowAfter.Seconds(),
		},
	}
}

// chart is the picture of one series. Without JavaScript it is complete; the script adds the values under the pointer.
type chart struct {
	Title string
	// Peak is the highest value in words; "": none is known. Alert is the threshold; "": there is none.
	Peak, Alert string
	// Over: the newest value is above the threshold.
	Over  bool
	Lines []chartLine
	// Axis are the labels of the value axis, from the top.
	Axis []string
	// AlertAt is the distance of the threshold from the top; "": it is above the picture, or there is none.
	AlertAt string
}

// chartLine is a line with the newest value, the texts of all values, separated by "|", and the path in SVG.
type chartLine struct {
	Number                 int
	Name, Now, Texts, Path string
}

// chart draws all these points, of which there is at least one. Missing says why the newest value is unknown.
func (s series) chart(points []point, missing string) chart {
	first, newest, peak := s.lines[0].value, points[len(points)-1], -1.0
	for _, p := range points {
		peak = max(peak, p[first])
	}
	c, top := chart{Title: s.title}, s.top(peak)
	if peak >= 0 {
		c.Peak = "peak " + s.text(peak)
	}
	if s.alert > 0 {
		c.Alert, c.Over = "alert above "+s.text(s.alert), newest[first] > s.alert
		if peak >= s.alert/5 {
			top = s.top(max(peak, s.alert))
			c.AlertAt = fmt.Sprintf("%g%%", 100-100*s.alert/top)
		}
	}
	for _, v := range []float64{top, top / 2} {
		text, _, _ := strings.Cut(s.text(v), " row") // the title says it
		c.Axis = append(c.Axis, text)
	}
	c.Axis = append(c.Axis, "0")
	for i, l := range s.lines {
		texts := make([]string, len(points))
		for n, p := range points {
			texts[n] = s.textOf(p[l.value])
		}
		now := texts[len(texts)-1]
		if newest[l.value] == unknown { // once for all lines
			now, missing = missing, ""
		}
		c.Lines = append(c.Lines, chartLine{i + 1, l.name, now, strings.Join(texts, "|"), l.path(points, top)})
	}
	return c
}

// path draws a line for each stretch of known values, 1000 wide and 100 high.
func (l line) path(points []point, top float64) string {
	var b strings.Builder
	step, known := 1000/float64(max(1, len(points)-1)), false
	for i, p := range points {
		v, before := p[l.value], known
		known = v >= 0
		switch x, y := float64(i)*step, 100-100*v/top; {
		case known && before:
			fmt.Fprintf(&b, "L%.1f %.1f", x, y)
		case known:
			fmt.Fprintf(&b, "M%.1f %.1fh0", x, y) // a lone value is a dot
		}
	}
	return b.String()
}

// textOf is text for a value that may be unknown.
func (s series) textOf(v float64) string {
	switch {
	case v == noMessages:
		return "no messages"
	case v < 0:
		return "no answer"
	}
	return s.text(v)
}

func perSecondText(v float64) string {
	if v > 0 && v < 10 {
		return fmt.Sprintf("%.2g/s", v)
	}
	return show.Number(int64(v+0.5)) + "/s"
}

func rowsText(v float64) string { return show.Plural(int64(v+0.5), "row") }

func secondsText(v float64) string {
	if v < 10 {
		return fmt.Sprintf("%.2gs", v)
	}
	text := show.Duration(time.Duration(v * float64(time.Second)))
	for _, zero := range []string{"m0s", "h0m", "d0h"} {
		if strings.HasSuffix(text, zero) {
			return text[:len(text)-2]
		}
	}
	return text
}

func millisecondsText(v float64) string {
	if v >= 1000 {
		return fmt.Sprintf("%.3g s", v/1000)
	}
	return fmt.Sprintf("%.3g ms", v)
}

// topOf returns a round number at or above the peak, whose half is round, too.
func topOf(peak float64) float64 {
	if peak <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(peak)))
	for _, times := range []float64{1, 2, 4, 6, 8} {
		if peak <= times*power {
			return times * power
		}
	}
	return 10 * power
}

// topOfRows is topOf in whole rows, also for its half.
func topOfRows(peak float64) float64 { return max(2, topOf(peak)) }

// topOfSeconds is topOf in whole seconds, minutes, hours or days.
func topOfSeconds(peak float64) float64 {
	unit := 1.0
	for _, longer := range []float64{60, 3600, 24 * 3600} {
		if peak > longer {
			unit = longer
		}
	}
	return unit * topOf(peak/unit)
}

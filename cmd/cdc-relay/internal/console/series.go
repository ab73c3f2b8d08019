package console

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// series says what one chart shows.
type series struct {
	Title string
	lines []line
	// text formats a value with its unit. top returns the end of the value axis for a peak.
	text func(float64) string
	top  func(float64) float64
	// alert is the threshold of the alert about this value; 0: none.
	alert float64
}

// line is one line of a chart.
type line struct {
	// name tells lines of one chart apart; "": the chart has one line.
	name string
	of   func(point) float64
	// mean: a step shows the mean of its samples, else the highest.
	mean bool
}

func allSeries() []series {
	one := func(of func(point) float64, mean bool) []line { return []line{{"", of, mean}} }
	return []series{
		{"Published", one(func(p point) float64 { return p.perSecond }, true), perSecondText, topOf, 0},
		{"Queue depth", one(func(p point) float64 { return p.depth }, false), rowsText, topOfRows, show.MostDepth},
		{
			"Oldest pending", one(func(p point) float64 { return p.oldest }, false), secondsText, topOfSeconds,
			show.LateAfter.Seconds(),
		},
		{"Commit to confirm", []line{
			{"p99", func(p point) float64 { return p.p99 }, false},
			{"p50", func(p point) float64 { return p.p50 }, true},
		}, millisecondsText, topOf, float64(show.SlowAfter.Milliseconds())},
	}
}

// textOf is text for a value that may be unknown.
func (s series) textOf(v float64) string {
	switch {
	case v == noMessages:
		return "no messages"
	case v < 0:
		return "unknown"
	}
	return s.text(v)
}

// axis is text without what the title says, so that it fits beside the chart.
func (s series) axis(v float64) string {
	text, _, _ := strings.Cut(s.text(v), " row")
	return text
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
	for _, unit := range []float64{1, 60, 3600} {
		for _, times := range []float64{1, 2, 4, 10, 20, 40} {
			if peak <= times*unit {
				return times * unit
			}
		}
	}
	const day = 24 * 3600
	return topOf(peak/day) * day
}

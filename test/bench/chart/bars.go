package chart

import (
	"fmt"
	"io"
	"strings"
)

// Bars is a chart of stacked bars.
type Bars struct {
	Title string
	Y     Axis
	// Parts names the parts of each bar, from the bottom.
	Parts []string
	Bars  []Bar
}

// Bar is one bar. It has as many Parts as the chart.
type Bar struct {
	Name  string
	Parts []float64
}

// Write draws the chart.
func (c Bars) Write(w io.Writer) error {
	var sums []Point
	for _, bar := range c.Bars {
		sum := 0.0
		for _, part := range bar.Parts {
			sum += part
		}
		sums = append(sums, Point{Y: sum})
	}
	if len(sums) == 0 {
		return fmt.Errorf("the chart %q has no bars", c.Title)
	}
	y := newMapping(c.Y, plotHeight, sums, func(p Point) float64 { return p.Y })
	var svg strings.Builder
	begin(&svg, c.Title)
	drawAxes(&svg, Axis{}, c.Y, mapping{}, y)
	each := float64(plotWidth) / float64(len(c.Bars))
	for i, bar := range c.Bars {
		drawBar(&svg, bar, left+each*(float64(i)+0.2), each*0.6, sums[i].Y, y)
	}
	for i, part := range c.Parts {
		at := legendY + (len(c.Parts)-1-i)*legendH // in the order of the stack
		fmt.Fprintf(&svg, `<rect x="%d" y="%d" width="14" height="12" fill="%s"/>`+"\n", legendX, at-6, colour(i))
		text(&svg, legendX+20, float64(at+4), "start", "", part)
	}
	svg.WriteString("</svg>\n")
	_, err := io.WriteString(w, svg.String())
	return err
}

func drawBar(svg *strings.Builder, bar Bar, x, wide, sum float64, y mapping) {
	below := 0.0
	for i, part := range bar.Parts {
		bottomY, topY := y.place(below), y.place(below+part)
		fmt.Fprintf(svg, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n",
			x, float64(top+plotHeight)-topY, wide, topY-bottomY, colour(i))
		below += part
	}
	text(svg, x+wide/2, float64(top+plotHeight)-y.place(sum)-5, "middle", "", fmt.Sprintf("%.0f", sum))
	text(svg, x+wide/2, top+plotHeight+16, "middle", `font-size="11"`, bar.Name)
}

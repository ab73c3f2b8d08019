package demo

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/terminal"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// counts are of orders.
type counts struct{ sent, arrived, repeated int }

// summary has the numbers of the last line.
type summary struct {
	counts
	p50, p99, worst time.Duration
}

// screen prints the progress: on a terminal with colours and a live last line, else as plain lines.
type screen struct {
	// out is not escaped, for the codes that erase the live line. What comes from outside goes through show.Printable.
	out    io.Writer
	isLive bool // out has a live last line
	colour bool
	width  func() int
}

func newScreen(t terminal.Terminal) screen {
	return screen{out: show.Raw(t.Out), isLive: show.IsTerminal(t.Out), colour: t.Colours(), width: t.Width}
}

const (
	plain  = ""
	dim    = "2"
	bold   = "1"
	green  = "32"
	yellow = "33"
	red    = "31"
)

func (s screen) paint(style, text string) string {
	if !s.colour || style == plain {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}

// clear returns the codes that erase the live line.
func (s screen) clear() string {
	if !s.isLive {
		return ""
	}
	return "\r\x1b[2K"
}

func (s screen) begin(table outbox.Table, database, queue string) {
	fmt.Fprintf(s.out, "%s\n", s.paint(bold, "Each order is inserted, committed, published and received here."))
	fmt.Fprintf(s.out, "%s\n", s.paint(dim, show.Printable(fmt.Sprintf("from %s at %s", table, database))))
	fmt.Fprintf(s.out, "%s\n\n", s.paint(dim, show.Printable(fmt.Sprintf("through queue %s; Ctrl-C ends it", queue))))
}

func (s screen) arrival(order sentOrder, took time.Duration, n summary) {
	id, latency := fmt.Sprintf("%7s", fmt.Sprintf("#%d", order.id)), fmt.Sprintf("%10s", show.Milliseconds(took))
	text := show.Printable(order.text)
	text += strings.Repeat(" ", max(0, 44-len([]rune(text))))
	if !s.isLive {
		fmt.Fprintf(s.out, "%s  %s %s  (p50 %s, p99 %s)\n",
			id, text, latency, show.Milliseconds(n.p50), show.Milliseconds(n.p99))
		return
	}
	fmt.Fprintf(s.out, "%s%s  %s %s\n%s",
		s.clear(), s.paint(dim, id), text, s.paint(speed(took), latency), s.liveLine(n))
}

func speed(took time.Duration) string {
	switch {
	case took < 10*time.Millisecond:
		return green
	case took < 100*time.Millisecond:
		return yellow
	}
	return red
}

// live redraws the last line.
func (s screen) live(n summary) {
	if s.isLive {
		fmt.Fprint(s.out, s.clear(), s.liveLine(n))
	}
}

func (s screen) liveLine(n summary) string {
	line := fmt.Sprintf("  %d sent · %d arrived", n.sent, n.arrived)
	if n.arrived > 0 {
		line += fmt.Sprintf(" · p50 %s · p99 %s", show.Milliseconds(n.p50), show.Milliseconds(n.p99))
	}
	if runes := []rune(line); len(runes) > s.width() {
		line = string(runes[:s.width()]) // a wrapped line could not be erased
	}
	return s.paint(bold, line)
}

func (s screen) note(text string) {
	fmt.Fprintf(s.out, "%s%s\n", s.clear(), s.paint(yellow, show.Printable(text)))
}

func (s screen) end(n summary) {
	fmt.Fprintf(s.out, "%s\n%s", s.clear(), s.paint(bold, fmt.Sprintf("%d sent, %d arrived", n.sent, n.arrived)))
	if n.repeated > 0 {
		fmt.Fprintf(s.out, ", %d of them twice", n.repeated)
	}
	if n.arrived > 0 {
		fmt.Fprintf(s.out, "; commit to arrival: p50 %s, p99 %s, slowest %s",
			show.Milliseconds(n.p50), show.Milliseconds(n.p99), show.Milliseconds(n.worst))
	}
	fmt.Fprintln(s.out)
}

package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// demoNumbers are the numbers of the summary.
type demoNumbers struct {
	sent, arrived, repeated int
	p50, p99, worst         time.Duration
}

// demoScreen prints the progress: on a terminal with colours and a live last line, else as plain lines.
type demoScreen struct {
	out      io.Writer
	terminal bool
	colour   bool
	width    func() int
}

func (p *process) demoScreen() demoScreen {
	out := p.terminal.Out
	return demoScreen{out: show.Raw(out), terminal: show.IsTerminal(out), colour: p.terminal.Colours(), width: p.terminal.Width}
}

const (
	plain  = ""
	dim    = "2"
	bold   = "1"
	green  = "32"
	yellow = "33"
	red    = "31"
)

func (s demoScreen) paint(style, text string) string {
	if !s.colour || style == plain {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}

// clear returns the codes that erase the live line.
func (s demoScreen) clear() string {
	if !s.terminal {
		return ""
	}
	return "\r\x1b[2K"
}

func (s demoScreen) begin(table outbox.Table, database, queue string) {
	fmt.Fprintf(s.out, "%s\n", s.paint(bold, "Each order is inserted, committed, published and received here."))
	fmt.Fprintf(s.out, "%s\n", s.paint(dim, show.Printable(fmt.Sprintf("from %s at %s", table, database))))
	fmt.Fprintf(s.out, "%s\n\n", s.paint(dim, show.Printable(fmt.Sprintf("through queue %s; Ctrl-C ends it", queue))))
}

func (s demoScreen) arrival(order demoOrder, took time.Duration, n demoNumbers) {
	id, latency := fmt.Sprintf("%7s", fmt.Sprintf("#%d", order.id)), fmt.Sprintf("%10s", show.Milliseconds(took))
	text := show.Printable(order.text)
	text += strings.Repeat(" ", max(0, 44-len([]rune(text))))
	if !s.terminal {
		fmt.Fprintf(s.out, "%s  %s %s  (p50 %s, p99 %s)\n", id, text, latency, show.Milliseconds(n.p50), show.Milliseconds(n.p99))
		return
	}
	fmt.Fprintf(s.out, "%s%s  %s %s\n%s", s.clear(), s.paint(dim, id), text, s.paint(speed(took), latency), s.liveLine(n))
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
func (s demoScreen) live(n demoNumbers) {
	if s.terminal {
		fmt.Fprint(s.out, s.clear(), s.liveLine(n))
	}
}

func (s demoScreen) liveLine(n demoNumbers) string {
	line := fmt.Sprintf("  %d sent · %d arrived", n.sent, n.arrived)
	if n.arrived > 0 {
		line += fmt.Sprintf(" · p50 %s · p99 %s", show.Milliseconds(n.p50), show.Milliseconds(n.p99))
	}
	if runes := []rune(line); len(runes) > s.width() {
		line = string(runes[:s.width()]) // a wrapped line could not be erased
	}
	return s.paint(bold, line)
}

func (s demoScreen) note(text string) {
	fmt.Fprintf(s.out, "%s%s\n", s.clear(), s.paint(yellow, show.Printable(text)))
}

func (s demoScreen) end(n demoNumbers) {
	fmt.Fprintf(s.out, "%s\n%s", s.clear(), s.paint(bold, fmt.Sprintf("%d sent, %d arrived", n.sent, n.arrived)))
	if n.repeated > 0 {
		fmt.Fprintf(s.out, ", %d of them twice", n.repeated)
	}
	if n.arrived > 0 {
		fmt.Fprintf(s.out, "; commit to arrival: p50 %s, p99 %s, slowest %s", show.Milliseconds(n.p50), show.Milliseconds(n.p99), show.Milliseconds(n.worst))
	}
	fmt.Fprintln(s.out)
}

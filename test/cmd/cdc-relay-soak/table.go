package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/test/soak/history"
	"github.com/cdc-relay/cdc-relay/test/soak/subject"
)

// tableCommand prints the tables of several runs.
func (p *process) tableCommand(c *cli.Context) error {
	if !c.Args().Present() {
		return usagef("table: want one or more FILEs, the reports of runs with --subject and --json")
	}
	var verdicts []*history.Verdict
	for _, name := range c.Args().Slice() {
		content, err := os.ReadFile(name)
		if err != nil {
			return usagef("table: %s", err)
		}
		var verdict history.Verdict
		if err := json.Unmarshal(content, &verdict); err != nil {
			return usagef("table: %s: %s", name, err)
		}
		verdicts = append(verdicts, &verdict)
	}
	return writeTable(p.stdout, verdicts)
}

// column is all runs of one subject.
type column []*history.Verdict

func (c column) name() string { return c[0].Run.Subject }

// columns groups runs by their subjects, in the order of the first run of each.
func columns(verdicts []*history.Verdict) []column {
	var all []column
	for _, v := range verdicts {
		at := slices.IndexFunc(all, func(c column) bool { return c.name() == v.Run.Subject })
		if at < 0 {
			all = append(all, column{v})
		} else {
			all[at] = append(all[at], v)
		}
	}
	return all
}

// writeTable writes Markdown: a row for each number and each group of faults, a column for each subject.
func writeTable(out io.Writer, verdicts []*history.Verdict) error {
	var text strings.Builder
	all := columns(verdicts)
	row := func(name string, cell func(column) string) {
		text.WriteString("|" + name)
		for _, c := range all {
			text.WriteString("|" + cell(c))
		}
		text.WriteString("|\n")
	}
	head := func(name string) {
		row(name, column.name)
		text.WriteString("|---" + strings.Repeat("|---", len(all)) + "|\n")
	}
	head("")
	for _, line := range tableRows() {
		if !line.odd || slices.ContainsFunc(all, func(c column) bool { return line.cell(c) != "0" }) {
			row(line.name, line.cell)
		}
	}
	text.WriteString("\n")
	head("recovery, s: median/longest")
	every := func(*history.FaultReport) bool { return true }
	silence := func(f *history.FaultReport) *history.Milliseconds { return f.Silence }
	row("all faults", func(c column) string { return spread(c.times(silence, every)) })
	for _, g := range subject.Groups() {
		here := func(f *history.FaultReport) bool { return slices.Contains(g.Faults, f.Name) }
		row(g.Name, func(c column) string { return spread(c.times(silence, here)) })
	}
	caughtUp := func(f *history.FaultReport) *history.Milliseconds { return f.CaughtUp }
	row("all faults, whole backlog", func(c column) string { return spread(c.times(caughtUp, every)) })
	_, err := io.WriteString(out, text.String())
	return err
}

type tableRow struct {
	name string
	cell func(column) string
	odd  bool // shown only if it is not 0 for each subject
}

func tableRows() []tableRow {
	counted := func(of func(*history.Verdict) int) func(column) string {
		return func(c column) string { return grouped(c.sum(of)) }
	}
	return []tableRow{
		{name: "faults", cell: counted(func(v *history.Verdict) int { return len(v.Faults) })},
		{name: "messages committed", cell: counted(func(v *history.Verdict) int {
			return v.Counters.Acknowledged + v.Counters.Recovered
		})},
		{name: "lost", cell: counted(func(v *history.Verdict) int { return v.Counters.Lost })},
		{name: "never committed, and published", odd: true, cell: counted(func(v *history.Verdict) int {
			return v.Counters.Unexpected
		})},
		{name: "damaged", odd: true, cell: counted(func(v *history.Verdict) int { return v.Counters.Damaged })},
		{name: "not published at the end", odd: true, cell: counted(func(v *history.Verdict) int {
			return v.Counters.Waiting
		})},
		{name: "duplicates, marked", cell: counted(func(v *history.Verdict) int {
			return v.Counters.DuplicatedMarked
		})},
		{name: "duplicates, not marked", cell: counted(func(v *history.Verdict) int {
			return v.Counters.DuplicatedUnmarked
		})},
		{name: "out of order within a key", cell: counted(func(v *history.Verdict) int {
			return v.Counters.OutOfOrder
		})},
		// Of the slower run: a median of several runs is not in their reports.
		{name: "latency without faults, median, ms", cell: func(c column) string {
			slowest := c.slowest(func(v *history.Verdict) history.Milliseconds { return v.Delivery.LatencyP50 })
			return fmt.Sprint(time.Duration(slowest).Round(time.Millisecond).Milliseconds())
		}},
		{name: "process ended by itself", cell: counted(func(v *history.Verdict) int { return v.Exits })},
		{name: "processor time for 1,000 messages, s", cell: func(c column) string {
			spent := c.sum(func(v *history.Verdict) int { return int(v.Processor) })
			delivered := c.sum(func(v *history.Verdict) int { return v.Counters.Delivered })
			return seconds(history.Milliseconds(spent * 1000 / max(delivered, 1)))
		}},
	}
}

func (c column) sum(of func(*history.Verdict) int) int {
	sum := 0
	for _, v := range c {
		sum += of(v)
	}
	return sum
}

func (c column) slowest(of func(*history.Verdict) history.Milliseconds) history.Milliseconds {
	var slowest history.Milliseconds
	for _, v := range c {
		slowest = max(slowest, of(v))
	}
	return slowest
}

// times returns a time of each fault that has one, shortest first.
func (c column) times(
	of func(*history.FaultReport) *history.Milliseconds, which func(*history.FaultReport) bool,
) []history.Milliseconds {
	var all []history.Milliseconds
	for _, v := range c {
		for i := range v.Faults {
			if f := &v.Faults[i]; which(f) && of(f) != nil {
				all = append(all, *of(f))
			}
		}
	}
	slices.Sort(all)
	return all
}

// spread returns the median and the longest.
func spread(sorted []history.Milliseconds) string {
	if len(sorted) == 0 {
		return "-"
	}
	return seconds(sorted[len(sorted)/2]) + "/" + seconds(sorted[len(sorted)-1])
}

func seconds(m history.Milliseconds) string { return fmt.Sprintf("%.2f", time.Duration(m).Seconds()) }

// grouped separates thousands.
func grouped(n int) string {
	text := fmt.Sprint(n)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

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

// writeTable writes Markdown: a row for each number and each group of faults, a column for each subject.
func writeTable(out io.Writer, verdicts []*history.Verdict) error {
	var names []string
	columns := make(map[string]column)
	for _, v := range verdicts {
		name := v.Run.Subject
		if columns[name] == nil {
			names = append(names, name)
		}
		columns[name] = append(columns[name], v)
	}
	var text strings.Builder
	row := func(name string, odd bool, cell func(column) string) {
		var cells []string
		for _, subject := range names {
			cells = append(cells, cell(columns[subject]))
		}
		if !odd || slices.ContainsFunc(cells, func(cell string) bool { return cell != "0" }) {
			fmt.Fprintf(&text, "|%s|%s|\n", name, strings.Join(cells, "|"))
		}
	}
	head := func(name string) {
		fmt.Fprintf(&text, "|%s|%s|\n|---%s|\n", name, strings.Join(names, "|"), strings.Repeat("|---", len(names)))
	}
	head("")
	for _, n := range numbers() {
		row(n.name, n.odd, func(c column) string { return grouped(c.sum(n.of)) })
	}
	row("latency without faults, median, ms", false, column.latency)
	row("processor time for 1,000 messages, s", false, column.processor)
	text.WriteString("\n")
	head("recovery, s: median/longest")
	silence := func(f *history.FaultReport) *history.Milliseconds { return f.Silence }
	caughtUp := func(f *history.FaultReport) *history.Milliseconds { return f.CaughtUp }
	row("all faults", false, func(c column) string { return c.spread(silence, nil) })
	for _, g := range subject.Groups() {
		row(g.Name, false, func(c column) string { return c.spread(silence, g.Faults) })
	}
	row("all faults, whole backlog", false, func(c column) string { return c.spread(caughtUp, nil) })
	_, err := io.WriteString(out, text.String())
	return err
}

// number is counted in each run.
type number struct {
	name string
	odd  bool // shown only if it is not 0 for each subject
	of   func(*history.Verdict) int
}

func numbers() []number {
	return []number{
		{"faults", false, func(v *history.Verdict) int { return len(v.Faults) }},
		{"messages committed", false, func(v *history.Verdict) int {
			return v.Counters.Acknowledged + v.Counters.Recovered
		}},
		{"lost", false, func(v *history.Verdict) int { return v.Counters.Lost }},
		{"never committed, and published", true, func(v *history.Verdict) int { return v.Counters.Unexpected }},
		{"damaged", true, func(v *history.Verdict) int { return v.Counters.Damaged }},
		{"not published at the end", true, func(v *history.Verdict) int { return v.Counters.Waiting }},
		{"duplicates, marked", false, func(v *history.Verdict) int { return v.Counters.DuplicatedMarked }},
		{"duplicates, not marked", false, func(v *history.Verdict) int { return v.Counters.DuplicatedUnmarked }},
		{"out of order within a key", false, func(v *history.Verdict) int { return v.Counters.OutOfOrder }},
		{"process ended by itself", false, func(v *history.Verdict) int { return v.Exits }},
	}
}

func (c column) sum(of func(*history.Verdict) int) (sum int) {
	for _, v := range c {
		sum += of(v)
	}
	return sum
}

// latency is that of the slowest run: a median of several runs is not in their reports.
func (c column) latency() string {
	var slowest time.Duration
	for _, v := range c {
		slowest = max(slowest, time.Duration(v.Delivery.LatencyP50))
	}
	return fmt.Sprint(slowest.Round(time.Millisecond).Milliseconds())
}

func (c column) processor() string {
	spent := c.sum(func(v *history.Verdict) int { return int(v.Processor) })
	delivered := c.sum(func(v *history.Verdict) int { return v.Counters.Delivered })
	return seconds(history.Milliseconds(spent * 1000 / max(delivered, 1)))
}

// spread returns the median and the longest of a time of the faults with these names, or of all for nil.
func (c column) spread(of func(*history.FaultReport) *history.Milliseconds, names []string) string {
	var all []history.Milliseconds
	for _, v := range c {
		for i := range v.Faults {
			f := &v.Faults[i]
			if took := of(f); took != nil && (names == nil || slices.Contains(names, f.Name)) {
				all = append(all, *took)
			}
		}
	}
	if len(all) == 0 {
		return "-"
	}
	slices.Sort(all)
	return seconds(all[len(all)/2]) + "/" + seconds(all[len(all)-1])
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

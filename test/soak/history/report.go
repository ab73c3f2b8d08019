package history

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteJSON writes the verdict as one indented JSON object; see Verdict for its names.
func (v *Verdict) WriteJSON(w io.Writer) error {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	out.SetIndent("", "  ")
	if err := out.Encode(v); err != nil {
		return fmt.Errorf("write the verdict: %w", err)
	}
	return nil
}

// WriteText writes the verdict for a person: the result, the numbers, each violation, and how to repeat the run.
func (v *Verdict) WriteText(w io.Writer) error {
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s\n%s\n\n", v.Headline(), v.about())
	v.writeCounters(&out)
	v.writeDelivery(&out)
	v.writeFaults(&out)
	v.writeViolations(&out)
	if v.Run.Command != "" {
		fmt.Fprintf(&out, "to run it again: %s\n", v.Run.Command)
	} else {
		fmt.Fprintf(&out, "its seed was %d\n", v.Run.Seed)
	}
	if _, err := w.Write(out.Bytes()); err != nil {
		return fmt.Errorf("write the verdict: %w", err)
	}
	return nil
}

// Headline returns the result in one line.
func (v *Verdict) Headline() string {
	c := &v.Counters
	switch v.Result {
	case Pass:
		return fmt.Sprintf("PASS: %d messages acknowledged, none lost, none unexpected, all in order; "+
			"duplicates %d, no more than the faults allow",
			c.Acknowledged, c.Duplicated)
	case Incomplete:
		return "INCOMPLETE: no violation so far, but " + v.Incomplete
	}
	var codes []string
	for i := range v.Violations {
		codes = append(codes, fmt.Sprintf("%s %d", words(v.Violations[i].Code), v.Violations[i].Count))
	}
	headline := "FAIL: " + strings.Join(codes, ", ")
	if v.Incomplete != "" {
		headline += "; beyond that, " + v.Incomplete
	}
	return headline
}

func words(c Code) string { return strings.ReplaceAll(string(c), "_", " ") }

// about returns the line that describes the run.
func (v *Verdict) about() string {
	parts := []string{fmt.Sprintf("seed %d", v.Run.Seed), "ran for " + v.Duration.String()}
	if !v.Run.Started.IsZero() {
		parts = append(parts, "began "+v.Run.Started.UTC().Format(time.RFC3339))
	}
	for _, name := range slices.Sorted(maps.Keys(v.Run.Versions)) {
		parts = append(parts, name+" "+v.Run.Versions[name])
	}
	return strings.Join(parts, ", ")
}

// table writes aligned columns; cells are separated by tabs.
func table(out *bytes.Buffer, rows func(*tabwriter.Writer)) {
	var aligned bytes.Buffer
	t := tabwriter.NewWriter(&aligned, 0, 0, 2, ' ', 0)
	rows(t)
	t.Flush() //nolint:errcheck // a buffer accepts everything
	for row := range strings.Lines(aligned.String()) {
		out.WriteString(strings.TrimRight(row, " \n") + "\n")
	}
	out.WriteByte('\n')
}

func (v *Verdict) writeCounters(out *bytes.Buffer) {
	c := &v.Counters
	out.WriteString("messages\n")
	table(out, func(t *tabwriter.Writer) {
		for _, row := range []struct {
			name  string
			count int
			about string
			odd   bool // shown only if not zero
		}{
			{"attempt", c.Attempt, "COMMIT was sent", false},
			{"acknowledged", c.Acknowledged, "COMMIT was answered", false},
			{"ok", c.OK, "acknowledged, and delivered or rightly a dead letter", false},
			{"lost", c.Lost, "committed, and neither delivered nor in a table", false},
			{"duplicated", c.Duplicated, fmt.Sprintf("duplicates by the relay: %d marked, %d unmarked",
				c.DuplicatedMarked, c.DuplicatedUnmarked), false},
			{"unexpected", c.Unexpected, "delivered or in a table, and never committed", false},
			{
				"recovered", c.Recovered,
				fmt.Sprintf("committed and delivered, of %d whose COMMIT was not answered", c.Unknown), false,
			},
			{"rolled back", c.RolledBack, fmt.Sprintf("and %d discarded after a savepoint", c.Discarded), false},
			{"delivered", c.Delivered, "arrived at least once", false},
			{"redelivered", c.Redelivered, "delivered again by the broker", false},
			{"dead letters", c.DeadLettered, "in the dead-letter table at the end", false},
			{"waiting", c.Waiting, "in the outbox at the end", false},
			{"out of order", c.OutOfOrder, "arrived after a later message of their key", true},
			{"early", c.Early, "arrived before they were due", true},
			{"damaged", c.Damaged, "not as written", true},
			{"needless dead letters", c.NeedlessDeadLetters, "without a reason to reject them", true},
			{"needless attempts", c.NeedlessAttempts, "without a reason to reject them", true},
			{"overtaken", c.DuplicatedOvertaken, "unmarked copies that arrived after a marked one", true},
			{"lost by the database", c.LostByDatabase, "acknowledged, and the business row is gone", true},
		} {
			if row.count != 0 || !row.odd {
				fmt.Fprintf(t, "  %s\t%d\t%s\n", row.name, row.count, row.about)
			}
		}
	})
}

func (v *Verdict) writeDelivery(out *bytes.Buffer) {
	d := &v.Delivery
	out.WriteString("delivery\n")
	table(out, func(t *tabwriter.Writer) {
		fmt.Fprintf(t, "  per second\t%.0f\n", d.PerSecond)
		fmt.Fprintf(t, "  latency\tp50 %s, p99 %s, max %s\tof %d messages, outside faults\n",
			d.LatencyP50, d.LatencyP99, d.LatencyMax, d.LatencyOf)
	})
}

func (v *Verdict) writeFaults(out *bytes.Buffer) {
	if len(v.Faults) == 0 {
		out.WriteString("no faults\n\n")
		return
	}
	out.WriteString("faults\n")
	table(out, func(t *tabwriter.Writer) {
		fmt.Fprintf(t, "  #\tat\tfault\theld\trecovered in\tcaught up in\tduplicates/allowed\tdetail\n")
		for i := range v.Faults {
			f := &v.Faults[i]
			held, recovered, caughtUp := "not healed", "", ""
			if f.Healed != nil {
				held = (*f.Healed - f.Began).String()
				recovered, caughtUp = orElse(f.Recovery, "never"), orElse(f.CaughtUp, "never")
				if f.Recovery == nil && f.Silence == nil {
					recovered = "no commits"
				}
			}
			fmt.Fprintf(t, "  %d\t%s\t%s\t%s\t%s\t%s\t%d/%d\t%s\n",
				f.ID, f.Began, f.Name, held, recovered, caughtUp, f.Duplicates, f.DuplicatesAllowed, oneLine(f.Detail))
		}
	})
}

func orElse(m *Milliseconds, otherwise string) string {
	if m == nil {
		return otherwise
	}
	return m.String()
}

// oneLine keeps line breaks out of a table.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

func (v *Verdict) writeViolations(out *bytes.Buffer) {
	for i := range v.Violations {
		x := &v.Violations[i]
		fmt.Fprintf(out, "%s: %d\n", words(x.Code), x.Count)
		for _, f := range x.First {
			fmt.Fprintf(out, "  %s\n", oneLine(f.What))
		}
		if rest := x.Count - len(x.First); rest > 0 {
			fmt.Fprintf(out, "  and %d more\n", rest)
		}
		out.WriteByte('\n')
	}
}

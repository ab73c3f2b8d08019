package history

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
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
	text, err := v.text()
	if err != nil {
		return err
	}
	about := fmt.Sprintf("ran for %s", v.Duration)
	for _, name := range slices.Sorted(maps.Keys(v.Run.Versions)) {
		about += fmt.Sprintf(", %s %s", name, v.Run.Versions[name])
	}
	_, err = fmt.Fprintf(w, "%s%s\nto run it again: %s\n", text, about, v.Run.Command)
	return err
}

// text returns the result, the counters that are not 0, the latency, and each fault and violation.
func (v *Verdict) text() (string, error) {
	var out strings.Builder
	out.WriteString(string(v.Result))
	if v.Incomplete != "" {
		out.WriteString(": " + v.Incomplete)
	}
	counters, err := json.Marshal(v.Counters)
	if err != nil {
		return "", err
	}
	var pairs []string
	for _, pair := range regexp.MustCompile(`"(\w+)":([1-9]\d*)`).FindAllStringSubmatch(string(counters), -1) {
		pairs = append(pairs, pair[1]+" "+pair[2])
	}
	fmt.Fprintf(&out, "\n%s\n", strings.Join(pairs, ", "))
	if d := v.Delivery; d.LatencyOf > 0 {
		fmt.Fprintf(&out, "latency of %d: p50 %s, p99 %s, max %s\n",
			d.LatencyOf, d.LatencyP50, d.LatencyP99, d.LatencyMax)
	}
	for i := range v.Faults {
		f := &v.Faults[i]
		fmt.Fprintf(&out, "fault %d (%s): recovery %s, silence %s, caught up %s, duplicates %d/%d\n", f.ID, f.Name,
			orElse(f.Recovery, "-"), orElse(f.Silence, "-"), orElse(f.CaughtUp, "-"), f.Duplicates, f.DuplicatesAllowed)
	}
	for i := range v.Violations {
		x := &v.Violations[i]
		fmt.Fprintf(&out, "%s %d\n", x.Code, x.Count)
		for _, f := range x.First {
			fmt.Fprintf(&out, "  %s\n", f.What)
		}
	}
	return out.String(), nil
}

func orElse(m *Milliseconds, otherwise string) string {
	if m == nil {
		return otherwise
	}
	return m.String()
}

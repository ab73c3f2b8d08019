package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/cdc-relay/cdc-relay/test/soak/subject"
)

// Report has the results of all rounds, and describes the machine.
type Report struct {
	Date     time.Time         `json:"date"`
	Versions map[string]string `json:"versions"`
	Machine  string            `json:"machine"`
	Settings Settings          `json:"settings"`
	// Blind names the servers whose processor time could not be read.
	Blind   []string `json:"blind,omitempty"`
	Results []Result `json:"results"`
}

// NewReport creates a report for runs on a site.
func NewReport(ctx context.Context, site *Site, settings Settings) (*Report, error) {
	version, err := subject.Version(ctx, site.Relay, false)
	if err != nil {
		return nil, err
	}
	return &Report{
		Date: time.Now().UTC().Truncate(time.Second), Settings: settings, Machine: machine(), Blind: site.Blind(),
		Versions: map[string]string{
			"cdc-relay": version,
			"Postgres":  site.Postgres.Version,
			"RabbitMQ":  site.RabbitMQ.Version,
			"Go":        runtime.Version(),
		},
	}, nil
}

func machine() string {
	return fmt.Sprintf("%d cores, %s/%s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH) + hardware()
}

// Add adds a result.
func (r *Report) Add(result Result) { r.Results = append(r.Results, result) }

// WriteJSON writes the report.
func (r *Report) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", " ")
	return encoder.Encode(r)
}

// Of returns the results of one case.
func (r *Report) Of(name string) []Result {
	return slices.DeleteFunc(slices.Clone(r.Results), func(one Result) bool { return one.Case != name })
}

// Spread is a median with the minimum and the maximum.
type Spread struct{ Median, Least, Most float64 }

// SpreadOf returns the spread of one number of the results; there must be at least one.
func SpreadOf(results []Result, number func(Result) float64) Spread {
	values := make([]float64, len(results))
	for i, result := range results {
		values[i] = number(result)
	}
	return spreadOf(values)
}

// spreadOf sorts the values; there must be at least one.
func spreadOf(values []float64) Spread {
	slices.Sort(values)
	middle := len(values) / 2
	median := values[middle]
	if len(values)%2 == 0 {
		median = (median + values[middle-1]) / 2
	}
	return Spread{Median: median, Least: values[0], Most: values[len(values)-1]}
}

func median(results []Result, number func(Result) float64) float64 {
	return SpreadOf(results, number).Median
}

// pairs returns the results of two cases from the same rounds: the machine differs more between rounds than the cases
// do.
func (r *Report) pairs(of, beside string) (pairs [][2]Result) {
	for _, one := range r.Of(of) {
		for _, other := range r.Of(beside) {
			if one.Round == other.Round {
				pairs = append(pairs, [2]Result{one, other})
			}
		}
	}
	return pairs
}

// ratio returns the median ratio of the rates of two cases; false: there is nothing to compare.
func (r *Report) ratio(of, beside string) (float64, bool) {
	var ratios []float64
	for _, pair := range r.pairs(of, beside) {
		if limit := pair[1].Rate; limit > 0 {
			ratios = append(ratios, pair[0].Rate/limit)
		}
	}
	if len(ratios) == 0 {
		return 0, false
	}
	return spreadOf(ratios).Median, true
}

// WriteText writes a table of the cases.
func (r *Report) WriteText(w io.Writer, cases []Case) error {
	var versions []string
	for _, name := range []string{"cdc-relay", "Postgres", "RabbitMQ", "Go"} {
		versions = append(versions, name+" "+r.Versions[name])
	}
	fmt.Fprintf(w, "%s\n%s; %s\n\n", r.Date.Format(time.RFC3339), r.Machine, strings.Join(versions, ", "))
	if len(r.Blind) > 0 {
		fmt.Fprintf(w, "The processor time of these servers is unknown, because they are not private ones: %s.\n\n",
			strings.Join(r.Blind, ", "))
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "\tmsg/s\tleast–most\tbeside\tratio\tCPU s/M\tkernel\tPostgres\twalsender\tRabbitMQ\tall"+
		"\t+vacuum\tMB\tp50 ms\tp99\tp99.9\tmax\t")
	for _, one := range cases {
		if results := r.Of(one.Name); len(results) > 0 {
			r.writeRow(table, one, results)
		}
	}
	return table.Flush()
}

func (r *Report) writeRow(w io.Writer, one Case, results []Result) {
	rate := SpreadOf(results, func(r Result) float64 { return r.Rate })
	fmt.Fprintf(w, "%s\t%.0f\t%.0f–%.0f\t", one.Name, rate.Median, rate.Least, rate.Most)
	if ratio, ok := r.ratio(one.Name, one.Beside); ok {
		fmt.Fprintf(w, "%s\t%.2f\t", one.Beside, ratio)
	} else {
		fmt.Fprint(w, "\t\t")
	}
	for _, number := range []func(Result) float64{
		func(r Result) float64 { return r.CPU.Measured },
		func(r Result) float64 { return r.CPU.Kernel },
		func(r Result) float64 { return r.CPU.Postgres },
		func(r Result) float64 { return r.CPU.Walsender },
		func(r Result) float64 { return r.CPU.RabbitMQ },
		func(r Result) float64 { return r.CPU.Sum() },
		func(r Result) float64 { return r.Vacuum },
	} {
		fmt.Fprintf(w, "%.1f\t", median(results, number))
	}
	fmt.Fprintf(w, "%.0f\t", median(results, func(r Result) float64 { return r.MemoryMB }))
	for i, number := range latencyColumns() {
		if results[0].Latency != nil {
			fmt.Fprintf(w, "%.2f", median(results, number))
			if over, ok := r.over(one, number); ok && i < 2 {
				fmt.Fprintf(w, " (%+.2f)", over)
			}
		}
		fmt.Fprint(w, "\t")
	}
	fmt.Fprintln(w)
}

// latencyColumns need results with latencies.
func latencyColumns() []func(Result) float64 {
	return []func(Result) float64{
		func(r Result) float64 { return r.Latency.P50 },
		func(r Result) float64 { return r.Latency.P99 },
		func(r Result) float64 { return r.Latency.P999 },
		func(r Result) float64 { return r.Latency.Max },
	}
}

// over returns the median difference between a latency and that of the case it is compared with.
func (r *Report) over(one Case, number func(Result) float64) (float64, bool) {
	var above []float64
	for _, pair := range r.pairs(one.Name, one.Beside) {
		if pair[0].Latency != nil && pair[1].Latency != nil {
			above = append(above, number(pair[0])-number(pair[1]))
		}
	}
	if len(above) == 0 {
		return 0, false
	}
	return spreadOf(above).Median, true
}

// Line describes one result in a line.
func Line(r Result) string {
	text := fmt.Sprintf("%.0f/s, CPU s/M %.1f + Postgres %.1f (walsender %.1f) + RabbitMQ %.1f",
		r.Rate, r.CPU.Measured, r.CPU.Postgres, r.CPU.Walsender, r.CPU.RabbitMQ)
	if r.MemoryMB > 0 {
		text += fmt.Sprintf(", %.0f MB", r.MemoryMB)
	}
	if r.Latency != nil {
		text += fmt.Sprintf(", p50 %.2f ms, p99 %.2f ms", r.Latency.P50, r.Latency.P99)
	}
	if r.Duplicates > 0 {
		text += fmt.Sprintf(", %d duplicates", r.Duplicates)
	}
	return text
}

package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/cdc-relay/cdc-relay/test/bench/gauge"
)

// Report has the results of all rounds, and describes the machine.
type Report struct {
	Date     time.Time         `json:"date"`
	Versions map[string]string `json:"versions"`
	Machine  string            `json:"machine"`
	Settings Settings          `json:"settings"`
	Results  []Result          `json:"results"`
}

// Result is the result of one run. What was not measured is nil or 0.
type Result struct {
	Case       string `json:"case"`
	Round      int    `json:"round"` // counted from 1
	Messages   int    `json:"messages"`
	Duplicates int    `json:"duplicates,omitempty"` // messages that arrived again
	// From the first arrival to the end of all work, or of the steady load.
	Seconds  float64 `json:"seconds"`
	Rate     float64 `json:"rate"` // messages a second in that time
	CPU      CPU     `json:"cpu_s_per_million"`
	MemoryMB float64 `json:"memory_mb,omitempty"` // maximum resident memory of the measured process

	Latency *Quantiles `json:"latency_ms,omitempty"`
}

// CPU is processor time. Measured is that of the relay, or of the program it is compared with.
type CPU struct {
	Measured float64 `json:"measured"`
	Postgres float64 `json:"postgres"`
	// Walsender is the part of Postgres that decodes WAL and sends it.
	Walsender float64 `json:"walsender"`
	RabbitMQ  float64 `json:"rabbitmq"`
}

// Quantiles are quantiles of latencies, in ms.
type Quantiles struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p99_9"`
	Max  float64 `json:"max"`
}

func (r *Result) setLatencies(latencies []time.Duration) {
	if len(latencies) == 0 {
		return
	}
	slices.Sort(latencies)
	quantile := func(share float64) float64 {
		rank := int(math.Ceil(share*float64(len(latencies)))) - 1
		return float64(latencies[rank]) / float64(time.Millisecond)
	}
	r.Latency = &Quantiles{
		P50: quantile(0.5), P90: quantile(0.9), P99: quantile(0.99), P999: quantile(0.999), Max: quantile(1),
	}
}

// usage is processor time used so far.
type usage struct{ measured, postgres, walsender, rabbitmq time.Duration }

// usage reads the processor time of the publisher, if it was started, and of the servers, without the benchmark's own
// sessions. That of servers on other machines is 0.
func (r *run) usage() (u usage, err error) {
	if r.publisher != nil {
		if u.measured, err = r.publisher.cpu(); err != nil {
			return u, err
		}
	}
	if pid := r.site.Postgres.PID(); pid != 0 {
		if u.postgres, u.walsender, err = gauge.TreeCPU(pid, r.sessions, "walsender"); err != nil {
			return u, err
		}
	}
	if pid := r.site.RabbitMQ.PID(); pid != 0 {
		u.rabbitmq, err = gauge.CPU(pid)
	}
	return u, err
}

func (u usage) since(before usage) usage {
	return usage{
		measured: u.measured - before.measured, postgres: u.postgres - before.postgres,
		walsender: u.walsender - before.walsender, rabbitmq: u.rabbitmq - before.rabbitmq,
	}
}

// perMillion converts to seconds per million messages.
func (u usage) perMillion(messages int) CPU {
	each := func(d time.Duration) float64 { return d.Seconds() / float64(messages) * 1e6 }
	return CPU{
		Measured: each(u.measured), Postgres: each(u.postgres),
		Walsender: each(u.walsender), RabbitMQ: each(u.rabbitmq),
	}
}

// NewReport creates a report for runs on a site.
func NewReport(ctx context.Context, site *Site, settings Settings) (*Report, error) {
	output, err := exec.CommandContext(ctx, site.Relay, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --version: %w", site.Relay, err)
	}
	version, _, _ := strings.Cut(string(output), "\n")
	return &Report{
		Date: time.Now().UTC().Truncate(time.Second), Settings: settings,
		Machine: fmt.Sprintf("%d cores, %s/%s%s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, gauge.Hardware()),
		Versions: map[string]string{
			"cdc-relay": strings.TrimPrefix(version, "cdc-relay "), "Go": runtime.Version(),
			"Postgres": site.Postgres.Version, "RabbitMQ": site.RabbitMQ.Version,
		},
	}, nil
}

// WriteJSON writes the report.
func (r *Report) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", " ")
	return encoder.Encode(r)
}

// of returns the results of one case.
func (r *Report) of(name string) []Result {
	return slices.DeleteFunc(slices.Clone(r.Results), func(one Result) bool { return one.Case != name })
}

// column is a number of the table: the median of the rounds.
type column struct {
	name, format string
	number       func(Result) float64
}

func columns() []column {
	latency := func(name string, of func(*Quantiles) float64) column {
		return column{name, "%.2f", func(r Result) float64 {
			if r.Latency == nil {
				return math.NaN()
			}
			return of(r.Latency)
		}}
	}
	return []column{
		{"msg/s", "%.0f", func(r Result) float64 { return r.Rate }},
		{"CPU s/M", "%.1f", func(r Result) float64 { return r.CPU.Measured }},
		{"Postgres", "%.1f", func(r Result) float64 { return r.CPU.Postgres }},
		{"walsender", "%.1f", func(r Result) float64 { return r.CPU.Walsender }},
		{"RabbitMQ", "%.1f", func(r Result) float64 { return r.CPU.RabbitMQ }},
		{"all", "%.1f", func(r Result) float64 { return r.CPU.Measured + r.CPU.Postgres + r.CPU.RabbitMQ }},
		{"MB", "%.0f", func(r Result) float64 { return r.MemoryMB }},
		latency("p50 ms", func(q *Quantiles) float64 { return q.P50 }),
		latency("p99", func(q *Quantiles) float64 { return q.P99 }),
		latency("p99.9", func(q *Quantiles) float64 { return q.P999 }),
		latency("max", func(q *Quantiles) float64 { return q.Max }),
	}
}

// WriteText writes a table of the cases.
func (r *Report) WriteText(w io.Writer, cases []Case) error {
	fmt.Fprintf(w, "%s\n%s", r.Date.Format(time.RFC3339), r.Machine)
	for _, name := range []string{"cdc-relay", "Postgres", "RabbitMQ", "Go"} {
		fmt.Fprintf(w, ", %s %s", name, r.Versions[name])
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "\n\n\tleast–most\tbeside\tratio\t")
	for _, column := range columns() {
		fmt.Fprint(table, column.name, "\t")
	}
	fmt.Fprintln(table)
	for _, one := range cases {
		if results := r.of(one.Name); len(results) > 0 {
			r.writeRow(table, one, results)
		}
	}
	return table.Flush()
}

func (r *Report) writeRow(w io.Writer, one Case, results []Result) {
	rates := sorted(results, func(r Result) float64 { return r.Rate })
	fmt.Fprintf(w, "%s\t%.0f–%.0f\t", one.Name, rates[0], rates[len(rates)-1])
	if ratios := r.ratios(one); len(ratios) > 0 {
		fmt.Fprintf(w, "%s\t%.2f\t", one.Beside, median(ratios))
	} else {
		fmt.Fprint(w, "\t\t")
	}
	for _, column := range columns() {
		if number := median(sorted(results, column.number)); !math.IsNaN(number) {
			fmt.Fprintf(w, column.format, number)
		}
		fmt.Fprint(w, "\t")
	}
	fmt.Fprintln(w)
}

// ratios are those of the rates of two cases in the same rounds: the machine differs more between rounds than the cases
// do.
func (r *Report) ratios(one Case) (ratios []float64) {
	for _, result := range r.of(one.Name) {
		for _, other := range r.of(one.Beside) {
			if result.Round == other.Round {
				ratios = append(ratios, result.Rate/other.Rate)
			}
		}
	}
	slices.Sort(ratios)
	return ratios
}

func sorted(results []Result, number func(Result) float64) []float64 {
	values := make([]float64, len(results))
	for i, result := range results {
		values[i] = number(result)
	}
	slices.Sort(values)
	return values
}

// median is of at least one value.
func median(sorted []float64) float64 {
	middle := len(sorted) / 2
	if len(sorted)%2 == 0 {
		return (sorted[middle-1] + sorted[middle]) / 2
	}
	return sorted[middle]
}

// Line describes one result in a line.
func Line(r Result) (text string) {
	for _, column := range columns() {
		if number := column.number(r); !math.IsNaN(number) && number != 0 {
			text += fmt.Sprintf("%s "+column.format+", ", column.name, number)
		}
	}
	return text + fmt.Sprintf("%d duplicates", r.Duplicates)
}

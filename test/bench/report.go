package bench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"sync/atomic"
	"text/tabwriter"
	"time"
)

// Result is the result of one run. What was not measured is 0.
type Result struct {
	Case       string  `json:"case"`
	Round      int     `json:"round"` // counted from 1
	Messages   int     `json:"messages"`
	Duplicates int     `json:"duplicates"` // messages that arrived again
	Rate       float64 `json:"rate"`       // messages a second, from the first arrival to the end of all work

	// Processor time in seconds for a million messages. The first is that of the relay, or of the limit.
	CPU      float64 `json:"cpu"`
	Postgres float64 `json:"postgres"`
	RabbitMQ float64 `json:"rabbitmq"`

	MemoryMB float64 `json:"memory_mb"` // maximum resident memory of the relay
	P50      float64 `json:"p50_ms"`    // latencies
	P99      float64 `json:"p99_ms"`
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
	r.P50, r.P99 = quantile(0.5), quantile(0.99)
}

// usage is processor time used so far: of the publisher, of Postgres, and of RabbitMQ.
type usage [3]time.Duration

// setCPU sets the processor time used between two moments.
func (r *Result) setCPU(before, after usage) {
	for i, to := range []*float64{&r.CPU, &r.Postgres, &r.RabbitMQ} {
		*to = (after[i] - before[i]).Seconds() / float64(r.Messages) * 1e6
	}
}

// of returns the results of one case.
func of(name string, results []Result) []Result {
	return slices.DeleteFunc(slices.Clone(results), func(one Result) bool { return one.Case != name })
}

// column is a number of the table: the median of the rounds.
type column struct {
	name, format string
	number       func(Result) float64
}

func columns() []column {
	return []column{
		{"msg/s", "%.0f", func(r Result) float64 { return r.Rate }},
		{"CPU s/M", "%.1f", func(r Result) float64 { return r.CPU }},
		{"Postgres", "%.1f", func(r Result) float64 { return r.Postgres }},
		{"RabbitMQ", "%.1f", func(r Result) float64 { return r.RabbitMQ }},
		{"MB", "%.0f", func(r Result) float64 { return r.MemoryMB }},
		{"p50 ms", "%.2f", func(r Result) float64 { return r.P50 }},
		{"p99", "%.2f", func(r Result) float64 { return r.P99 }},
	}
}

// WriteText writes a table of the cases that have results.
func WriteText(w io.Writer, cases []Case, results []Result) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "\n\tleast–most\tbeside\tratio\t")
	for _, column := range columns() {
		fmt.Fprint(table, column.name, "\t")
	}
	fmt.Fprintln(table)
	for _, one := range cases {
		if own := of(one.Name, results); len(own) > 0 {
			writeRow(table, own, one.Beside, of(one.Beside, results))
		}
	}
	return table.Flush()
}

func writeRow(w io.Writer, own []Result, beside string, others []Result) {
	rates := sorted(own, func(r Result) float64 { return r.Rate })
	fmt.Fprintf(w, "%s\t%.0f–%.0f\t", own[0].Case, rates[0], rates[len(rates)-1])
	if ratios := ratios(own, others); len(ratios) > 0 {
		fmt.Fprintf(w, "%s\t%.2f\t", beside, median(ratios))
	} else {
		fmt.Fprint(w, "\t\t")
	}
	for _, column := range columns() {
		if number := median(sorted(own, column.number)); number != 0 {
			fmt.Fprintf(w, column.format, number)
		}
		fmt.Fprint(w, "\t")
	}
	fmt.Fprintln(w)
}

// ratios are those of the rates of two cases in the same rounds: the machine differs more between rounds than the cases
// do.
func ratios(own, others []Result) (ratios []float64) {
	for _, result := range own {
		for _, other := range others {
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

// arrivals records when each message of a run was committed and when it arrived. It is safe for concurrent use.
type arrivals struct {
	committedAt, arrivedAt []atomic.Int64 // nanoseconds since 1970; 0: not yet
	distinct, duplicates   atomic.Int64   // messages that arrived; that arrived again, or are not of this run
	firstAt                atomic.Int64
	all                    chan struct{} // closed when every message has arrived
}

// newArrivals is for messages 0 to expected-1.
func newArrivals(expected int) *arrivals {
	return &arrivals{
		committedAt: make([]atomic.Int64, expected), arrivedAt: make([]atomic.Int64, expected),
		all: make(chan struct{}),
	}
}

// committed records when the commit of message n was answered.
func (a *arrivals) committed(n int, at time.Time) { a.committedAt[n].Store(at.UnixNano()) }

// arrived records the arrival of message n. Only the first arrival counts.
func (a *arrivals) arrived(n int, at time.Time) {
	now := at.UnixNano()
	if n < 0 || n >= len(a.arrivedAt) || !a.arrivedAt[n].CompareAndSwap(0, now) {
		a.duplicates.Add(1)
		return
	}
	a.firstAt.CompareAndSwap(0, now)
	if a.distinct.Add(1) == int64(len(a.arrivedAt)) {
		close(a.all)
	}
}

// count returns how many different messages have arrived.
func (a *arrivals) count() int { return int(a.distinct.Load()) }

// first returns when the first message arrived. One must have.
func (a *arrivals) first() time.Time { return time.Unix(0, a.firstAt.Load()) }

// latencies returns the times from the answer to a message's commit until its arrival, of messages first and later. One
// can be negative: the server streams a commit that is on disk before it answers.
func (a *arrivals) latencies(first int) (all []time.Duration) {
	for n := first; n < len(a.arrivedAt); n++ {
		committed, arrived := a.committedAt[n].Load(), a.arrivedAt[n].Load()
		if committed != 0 && arrived != 0 {
			all = append(all, time.Duration(arrived-committed))
		}
	}
	return all
}

package bench

import (
	"math"
	"slices"
	"time"

	"github.com/cdc-relay/cdc-relay/test/bench/gauge"
)

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
	Vacuum   float64 `json:"vacuum_s_per_million,omitempty"`
	MemoryMB float64 `json:"memory_mb,omitempty"` // maximum resident memory of the measured process

	Latency *Quantiles `json:"latency_ms,omitempty"`
}

// CPU is processor time. Measured is that of the relay, or of the program it is compared with.
type CPU struct {
	Measured float64 `json:"measured"`
	Kernel   float64 `json:"measured_in_kernel"` // part of Measured
	Postgres float64 `json:"postgres"`
	// Walsender is the part of Postgres that decodes WAL and sends it.
	Walsender float64 `json:"walsender"`
	RabbitMQ  float64 `json:"rabbitmq"`
}

// Sum returns the total.
func (c CPU) Sum() float64 { return c.Measured + c.Postgres + c.RabbitMQ }

// Quantiles are quantiles of latencies, in ms.
type Quantiles struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p99_9"`
	Max  float64 `json:"max"`
}

// quantiles needs at least one duration, in order.
func quantiles(sorted []time.Duration) *Quantiles {
	return &Quantiles{
		P50:  quantile(sorted, 0.5),
		P90:  quantile(sorted, 0.9),
		P99:  quantile(sorted, 0.99),
		P999: quantile(sorted, 0.999),
		Max:  milliseconds(sorted[len(sorted)-1]),
	}
}

func quantile(sorted []time.Duration, share float64) float64 {
	rank := int(math.Ceil(share*float64(len(sorted)))) - 1
	return milliseconds(sorted[min(max(rank, 0), len(sorted)-1)])
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (r *Result) setLatencies(latencies []time.Duration) {
	if len(latencies) > 0 {
		r.Latency = quantiles(slices.Sorted(slices.Values(latencies)))
	}
}

// usage is processor time used so far.
type usage struct{ measured, kernel, postgres, walsender, rabbitmq time.Duration }

// usage reads the processor time, without the sessions in except. For the processes pids it is their sum; a pid of 0 is
// ignored. Servers on other machines count as 0.
func (w *world) usage(except []int, pids ...int) (u usage, err error) {
	for _, pid := range pids {
		if pid == 0 {
			continue
		}
		used, kernel, err := gauge.CPU(pid)
		if err != nil {
			return u, err
		}
		u.measured, u.kernel = u.measured+used, u.kernel+kernel
	}
	if w.site.postmaster != 0 {
		if u.postgres, u.walsender, err = gauge.TreeCPU(w.site.postmaster, except, "walsender"); err != nil {
			return u, err
		}
	}
	if w.site.broker != 0 {
		u.rabbitmq, _, err = gauge.CPU(w.site.broker)
	}
	return u, err
}

func (u usage) since(before usage) usage {
	return usage{
		measured: u.measured - before.measured, kernel: u.kernel - before.kernel,
		postgres: u.postgres - before.postgres, walsender: u.walsender - before.walsender,
		rabbitmq: u.rabbitmq - before.rabbitmq,
	}
}

// perMillion converts to seconds per million messages.
func (u usage) perMillion(messages int) CPU {
	each := func(d time.Duration) float64 { return d.Seconds() / float64(messages) * 1e6 }
	return CPU{
		Measured:  each(u.measured),
		Kernel:    each(u.kernel),
		Postgres:  each(u.postgres),
		Walsender: each(u.walsender),
		RabbitMQ:  each(u.rabbitmq),
	}
}

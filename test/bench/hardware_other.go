//go:build !linux

package bench

// hardware is unknown here. So is the processor time of processes: results have only rates and latencies.
func hardware() string { return "" }

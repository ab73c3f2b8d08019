//go:build !linux

package bench

// hardware is not known: nor is what processes use, so that here the limits and the relay show rates and latencies alone.
func hardware() string { return "" }

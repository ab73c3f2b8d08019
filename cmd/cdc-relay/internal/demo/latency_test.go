package demo

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestPercentilesCoverTheNewestMeasurements(t *testing.T) {
	var l latencies
	if got := l.percentile(0.5); got != 0 {
		t.Errorf("of nothing: %s", got)
	}
	one := new(latencies)
	one.add(time.Second)
	if one.percentile(0) != time.Second || one.percentile(1) != time.Second {
		t.Errorf("of one: %+v", one)
	}
	var all []time.Duration
	for range latencyWindow + 2500 {
		d := time.Duration(rand.IntN(1000))
		all = append(all, d)
		l.add(d)
	}
	newest := slices.Sorted(slices.Values(all[len(all)-latencyWindow:]))
	for _, test := range []struct {
		share float64
		at    int
	}{{0, 0}, {0.5, latencyWindow/2 - 1}, {0.99, latencyWindow*99/100 - 1}, {1, latencyWindow - 1}} {
		if got, want := l.percentile(test.share), newest[test.at]; got != want {
			t.Errorf("%.2f: got %d, want %d", test.share, got, want)
		}
	}
	if l.worst != slices.Max(all) {
		t.Errorf("worst: %d", l.worst)
	}
}

package main

import (
	"math"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
)

func TestDurationsSizesAndCountsAreReadable(t *testing.T) {
	for _, test := range []struct{ got, want string }{
		{durationText(850 * time.Millisecond), "850ms"},
		{durationText(59 * time.Second), "59s"},
		{durationText(200 * time.Second), "3m20s"},
		{durationText(-2 * time.Minute), "-2m0s"},
		{durationText(5*time.Hour + 2*time.Minute), "5h2m"},
		{durationText(99 * time.Hour), "4d3h"},
		{durationText(math.MinInt64), "-106751d23h"},
		{bytesText(0), "0 B"},
		{bytesText(1023), "1023 B"},
		{bytesText(16 << 10), "16.0 kB"},
		{bytesText(300 << 20), "300 MB"},
		{countText(1), "1"},
		{countText(-1234), "-1,234"},
		{countText(-123), "-123"},
		{countText(10_000_000), "10,000,000"},
		{printable("a\x1b[2Jb\nc größer"), `a\x1b[2Jb\nc größer`},
		{shortened("größer", 4), "grö…"},
		{countOf(operator.Count{N: 3, Precision: operator.Exact}), "3"},
		{countOf(operator.Count{N: operator.MostCounted, Precision: operator.AtLeast}), "more than 10,000"},
		{countOf(operator.Count{N: 3, Precision: operator.AtLeast}), "at least 3"},
		{countOf(operator.Count{N: 3_000_000, Precision: operator.Estimate}), "about 3,000,000"},
	} {
		if test.got != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
	}
}

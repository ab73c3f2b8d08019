package console

import (
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
)

func TestANumberFitsItsTile(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0", 9_999: "9,999", 10_000: "10k", 12_345: "12.3k", 99_940: "99.9k", 123_456: "123k", 999_499: "999k",
		999_500: "1M", 1_234_567: "1.23M", 45_678_901_234: "45.7G",
	} {
		if got := compact(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
	one := newTile("Waiting", operator.Count{N: 1_234_567, Precision: operator.Estimate}, "plain", "", "/waiting")
	if one.Count != "~1.23M" || one.Exact != "about 1,234,567" {
		t.Errorf("%+v", one)
	}
}

// A latency without a message is not an unknown one.
func TestAChartTellsNoMessagesFromNoAnswer(t *testing.T) {
	latency := allSeries()[3]
	for value, want := range map[float64]string{noMessages: "no messages", -1: "unknown", 3: "3 ms"} {
		points := sampled(30, func(int) float64 { return 1 })
		for i := range points {
			points[i].p50, points[i].p99 = value, value
		}
		c := chartOf(latency, points, windowOf(points, spans()[0]))
		told, draws := strings.Split(c.Lines[0].Texts, "|")[1], strings.Contains(string(c.SVG), `d="M`)
		if c.Now != want || told != strings.TrimPrefix(want, "unknown") || draws != (value > 0) {
			t.Errorf("%v: now %q, told %q in\n%s", value, c.Now, told, c.SVG)
		}
	}
}

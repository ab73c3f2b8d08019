package console

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

var noon = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

// sampled returns a sample every five seconds; value says what the queue depth was.
func sampled(n int, value func(i int) float64) (points []point) {
	for i := range n {
		late := time.Duration(i%3) * 700 * time.Millisecond // a sample takes its time
		points = append(points, point{noon.Add(time.Duration(i)*historyEvery + late), -1, value(i), -1, -1, -1})
	}
	return points
}

func depthOf(p point) float64 { return p.depth }

// However long the range, the chart shows the highest value.
func TestChartsShowThePeakOfEachRange(t *testing.T) {
	points := sampled(mostPoints, func(i int) float64 {
		if i == mostPoints-150 {
			return 777
		}
		return 3
	})
	for _, s := range spans() {
		w := windowOf(points, s)
		values := w.values(points, line{"", depthOf, false})
		if long := w.end().Sub(w.from); len(values) > 200 || long > s.Long || long < s.Long-s.step-w.step {
			t.Errorf("%s: %d values over %s", s.Name, len(values), long)
		}
		peak := 0.0
		for i, v := range values {
			if peak = max(peak, v); math.IsNaN(v) && !w.joins(i-1, i+1) {
				t.Errorf("%s: value %d of %d is unknown", s.Name, i, len(values))
			}
		}
		if peak != 777 {
			t.Errorf("%s: the peak is %v", s.Name, peak)
		}
	}
}

func TestAChartHasAxesAndTheThreshold(t *testing.T) {
	depth := allSeries()[1]
	for _, test := range []struct {
		value      float64
		axis, over string
		alert      bool
	}{
		{0, "2 1 0", "", false},
		{700, "800 400 0", "", false},
		{3000, "10,000 5,000 0", "", true},
		{15_000, "20,000 10,000 0", "over", true},
	} {
		points := sampled(100, func(int) float64 { return test.value })
		c := chartOf(depth, points, windowOf(points, spans()[0]))
		if strings.Join(c.Axis, " ") != test.axis || strings.Contains(string(c.SVG), `class="alert"`) != test.alert ||
			c.Over != (test.over != "") || len(c.Times) != 3 {
			t.Errorf("%v: %+v", test.value, c)
		}
	}
}

// The lines stand where the alerts fire.
func TestThresholdsAreThoseOfTheAlertRules(t *testing.T) {
	rules, err := os.ReadFile("../../../../deploy/prometheus/rules.yaml")
	must(t, err)
	for rule, want := range map[string]float64{
		`cdc_relay_queue_depth_rows\) > (\d+)`:         allSeries()[1].alert,
		`cdc_relay_oldest_pending_seconds\) > (\d+)`:   allSeries()[2].alert,
		`commit_to_confirm_seconds_bucket.* > (\d+)\s`: allSeries()[3].alert / 1000,
	} {
		found := regexp.MustCompile(rule).FindSubmatch(rules)
		if found == nil || string(found[1]) != fmt.Sprint(want) {
			t.Errorf("%s: the chart has %v, the rule %q", rule, want, found)
		}
	}
}

// A relay that was away leaves a gap, not a line.
func TestAGapOfSamplesIsAGapOfTheLine(t *testing.T) {
	points := sampled(60, func(i int) float64 {
		if i >= 20 && i < 40 {
			return -1
		}
		return 1
	})
	w := windowOf(points, spans()[0])
	lines, areas := w.paths(w.values(points, line{"", depthOf, false}), 1)
	if strings.Count(lines, "M") != 2 || strings.Count(areas, "Z") != 2 {
		t.Errorf("%s\n%s", lines, areas)
	}
}

func TestHistoryIsBounded(t *testing.T) {
	var h history
	for i := range mostPoints + 500 {
		h.add(sample{view: show.Stats{}}, noon.Add(time.Duration(i)*historyEvery), nil)
	}
	if n := len(h.mu.points); n != mostPoints || !h.mu.points[0].at.Equal(noon.Add(500*historyEvery)) {
		t.Errorf("%d samples since %s", n, h.mu.points[0].at)
	}
}

func TestValuesOfAnAxisAreRound(t *testing.T) {
	for v, want := range map[float64]string{0: "0s", 1.5: "1.5s", 59: "59s", 60: "1m", 90: "1m30s", 3600: "1h", 86400: "1d"} {
		if got := secondsText(v); got != want {
			t.Errorf("%v seconds: %s, want %s", v, got, want)
		}
	}
	for peak, want := range map[float64]float64{0: 1, 1: 1, 3: 4, 45: 60, 61: 120, 131: 240, 1e5: 144_000, 1e6: 20 * 86_400} {
		if got := topOfSeconds(peak); got != want {
			t.Errorf("%v seconds: the axis ends at %v, want %v", peak, got, want)
		}
	}
}

// JSON is laid out only if that does not make it much longer, and stays the same JSON.
func TestJSONIsLaidOutWithinBounds(t *testing.T) {
	deep := strings.Repeat("[", 5000) + strings.Repeat("]", 5000)
	for text, want := range map[string]string{
		`{"a":{"b":[1,2]},"c":"x,{[\"\\"}`: "{\n  \"a\": {\n    \"b\": [\n      1,\n      2\n    ]\n  },\n  \"c\": \"x,{[\\\"\\\\\"\n}",
		`1e400`:                            "1e400",
		`not JSON {`:                       "not JSON {",
		deep:                               deep,
		`"\u202e<script>"`:                 `"\u202e<script>"`,
	} {
		if got := string(laidOut([]byte(text))); got != want {
			t.Errorf("%.60s: %.200s", text, got)
		}
	}
	many := `[` + strings.Repeat(`"x",`, 20_000) + `0]`
	if got := laidOut([]byte(many)); !json.Valid(got) || len(got) > len(many)+mostIndented {
		t.Errorf("%d bytes became %d", len(many), len(got))
	}
}

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

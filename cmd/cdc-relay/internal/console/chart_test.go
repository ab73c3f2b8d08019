package console

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

var noon = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

// sampled returns points with this value for every line.
func sampled(n int, value float64) (points []point) {
	for range n {
		points = append(points, point{value, value, value, value, value})
	}
	return points
}

// The charts draw exactly from the first time that they name to the last, at the place of each sample. An interval
// without a sample is a gap, and a clock that was set begins again.
func TestChartsDrawTheRangeThatTheyName(t *testing.T) {
	for name, test := range map[string]struct {
		at   func(i int) time.Duration
		n    int
		long time.Duration
		path string
	}{
		"one sample": {func(int) time.Duration { return 0 }, 1, 0, "M0.0 0.0h0"},
		"a late one": {
			func(i int) time.Duration { return time.Duration(i)*historyEvery + time.Duration(i%2)*time.Second }, 3,
			2 * historyEvery, "M0.0 0.0h0L500.0 0.0L1000.0 0.0",
		},
		"a gap": {
			func(i int) time.Duration { return time.Duration(i+i/2*2) * historyEvery }, 4,
			5 * historyEvery, "M0.0 0.0h0L200.0 0.0M800.0 0.0h0L1000.0 0.0",
		},
		"a long gap":   {func(i int) time.Duration { return time.Duration(i*mostPoints+i) * historyEvery }, 2, 0, "M0.0 0.0h0"},
		"a clock back": {func(i int) time.Duration { return -time.Duration(i) * time.Hour }, 2, 0, "M0.0 0.0h0"},
		"many samples": {func(i int) time.Duration { return time.Duration(i) * historyEvery }, 900, 15 * time.Minute, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := history{}
			var newest time.Time
			for i := range test.n {
				newest = noon.Add(test.at(i))
				h.add(sample{view: show.Stats{OldestPendingSeconds: new(1.0)}}, newest, nil)
			}
			drawn := h.charts()
			if !drawn.To.Equal(newest) || drawn.To.Sub(drawn.From) != test.long {
				t.Errorf("from %s to %s, want %s to %s", drawn.From, drawn.To, test.long, newest)
			}
			path, told := drawn.All[2].Lines[0].Path, strings.Count(drawn.All[2].Lines[0].Texts, "|")
			if test.path != "" && path != test.path || told != int(test.long/historyEvery) {
				t.Errorf("%d texts, the path is %s", told+1, path)
			}
		})
	}
}

func TestAChartHasAxesAndTheThreshold(t *testing.T) {
	for _, test := range []struct {
		value       float64
		axis        string
		alert, over bool
	}{
		{0, "2 1 0", false, false},
		{700, "800 400 0", false, false},
		{3000, "10,000 5,000 0", true, false},
		{15_000, "20,000 10,000 0", true, true},
	} {
		c := allSeries()[1].chart(sampled(100, test.value), "")
		if strings.Join(c.Axis, " ") != test.axis || (c.AlertAt != "") != test.alert || c.Over != test.over {
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

func TestValuesOfAnAxisAreRound(t *testing.T) {
	for v, want := range map[float64]string{0: "0s", 1.5: "1.5s", 59: "59s", 60: "1m", 90: "1m30s", 3600: "1h", 86400: "1d"} {
		if got := secondsText(v); got != want {
			t.Errorf("%v seconds: %s, want %s", v, got, want)
		}
	}
	for peak, want := range map[float64]float64{0: 1, 1: 1, 3: 4, 45: 60, 61: 120, 131: 240, 1e5: 2 * 86_400, 1e6: 20 * 86_400} {
		if got := topOfSeconds(peak); got != want {
			t.Errorf("%v seconds: the axis ends at %v, want %v", peak, got, want)
		}
	}
}

// JSON becomes a tree in its order, with the texts that it has.
func TestJSONBecomesATree(t *testing.T) {
	var lines []string
	var write func(n node)
	write = func(n node) {
		lines = append(lines, n.Name+n.Text)
		for _, one := range n.Nodes {
			write(one)
		}
		lines = append(lines, n.Close)
	}
	write(*treeOf("p", []byte(`{"z":[1e400,null,"<b>\"\u00e4"],"a":{},"":true}`)))
	if got, want := strings.Join(lines, " "), `{ "z"[ 1e400  null  "<b>\"ä"  ] "a"{ } ""true  }`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for _, text := range []string{
		"", "1", `"x"`, "{", "[1] 2", `{"a" 1}`, strings.Repeat("[", 60) + strings.Repeat("]", 60),
		"[" + strings.Repeat("1,", 2000) + "1]",
	} {
		if got := treeOf("p", []byte(text)); got != nil {
			t.Errorf("%.50s: %+v", text, got)
		}
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
	for value, want := range map[float64]string{noMessages: "no messages", unknown: "no answer", 3: "3 ms"} {
		c := allSeries()[3].chart(sampled(30, value), "no answer")
		for i, l := range c.Lines {
			if i > 0 && value == unknown {
				want = "" // the first line says it for both
			}
			if told := strings.Split(l.Texts, "|")[1]; l.Now != want || i == 0 && told != want || (l.Path != "") != (value > 0) {
				t.Errorf("%v: now %q, told %q, path %s", value, l.Now, told, l.Path)
			}
		}
	}
}

package bench

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/bench/load"
)

func testReport() *Report {
	r := &Report{
		Date: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Machine: "a machine", Settings: Settings{Messages: 10},
		Versions: map[string]string{"cdc-relay": "1.2.3"},
	}
	for round, rate := range []float64{300, 100, 200} {
		limit := Result{Case: "publish", Round: round + 1, Rate: 2 * rate, CPU: CPU{Measured: 5, RabbitMQ: 40}}
		ours := Result{Case: "drain", Round: round + 1, Rate: rate, CPU: CPU{Measured: 9, Postgres: 7, RabbitMQ: 41}, MemoryMB: 33}
		r.Add(limit)
		r.Add(ours)
		for name, took := range map[string]time.Duration{"direct-500": time.Millisecond, "relay-500": 3 * time.Millisecond} {
			one := Result{Case: name, Round: round + 1, Rate: 500}
			one.setLatencies(latencies(took, 1000))
			r.Add(one)
		}
		for _, size := range []string{"10k", "100k"} {
			r.Add(Result{Case: BacklogPrefix + size, Round: round + 1, Messages: 10_000 * len(size), Rate: rate})
		}
	}
	r.Add(Result{Case: "idle", Round: 1, Idle: &CPU{Measured: 0.05}})
	for _, name := range []string{"long", "long-held"} {
		r.Add(Result{Case: name, Round: 1, Rate: 1000, Series: []Slice{{Second: 30, P99: 1}, {Second: 60, P99: 2}}})
	}
	return r
}

func latencies(took time.Duration, count int) []load.Latency {
	all := make([]load.Latency, count)
	for i := range all {
		all[i].Took = took
	}
	all[0].Took *= 100
	return all
}

// The report has 200 of 400 a second, 2 ms above the limit.
func TestReportTableHasMediansAndComparedCases(t *testing.T) {
	var text bytes.Buffer
	r := testReport()
	if err := r.WriteText(&text, Cases(r.Settings)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]string{
		"drain":     {"200", "100–300", "publish", "0.50", "9.0", "7.0", "41.0", "57.0", "33"},
		"relay-500": {"3.00 (+2.00)", "direct-500", "1.00", "300.00"},
		"idle":      {"0.050 %"},
	} {
		row := strings.TrimSpace(rowOf(text.String(), name)) + " "
		for _, part := range want {
			if !strings.Contains(row, " "+part+" ") {
				t.Errorf("the row of %s has no %q:\n%s", name, part, row)
			}
		}
	}
}

// The relay reaches half of its limit, on a slow machine and on a fast one. The second run has the limit only in some
// rounds, as an interrupted run has.
func TestRatiosCompareTheSameRoundsOfARun(t *testing.T) {
	slow, fast := &Report{}, &Report{}
	for round := 1; round <= 3; round++ {
		slow.Add(paced("publish", round, 200, 2))
		slow.Add(paced("drain", round, 100, 5))
		fast.Add(paced("drain", round, 1000, 4))
	}
	fast.Add(paced("publish", 3, 2000, 1))
	const ratio, above, inBoth = 0.5, 3, 4
	wantBeside := func(what string, r *Report) {
		t.Helper()
		is, ok := r.ratio("drain", "publish")
		over, known := r.over(Case{Name: "drain", Beside: "publish"}, func(r Result) float64 { return r.Latency.P50 })
		if !ok || is != ratio || !known || over != above {
			t.Errorf("%s: ratio %v, %v; latency above %v, %v", what, is, ok, over, known)
		}
		if pairs := r.pairs("drain", "publish"); len(pairs) != inBoth {
			t.Errorf("%s: %d rounds with both, want %d", what, len(pairs), inBoth)
		}
	}
	if err := slow.Merge(fast); err != nil {
		t.Fatal(err)
	}
	wantBeside("merged", slow)
	wantBeside("written and read", rewritten(t, slow))
	for i := range slow.Results {
		slow.Results[i].Run = 0
	}
	wantBeside("merged by an older program", rewritten(t, slow))
	if _, ok := fast.ratio("drain", "none"); ok {
		t.Error("a ratio without a case to compare with")
	}
}

func paced(name string, round int, rate, p50 float64) Result {
	return Result{Case: name, Round: round, Rate: rate, Latency: &Quantiles{P50: p50}}
}

func rewritten(t *testing.T, r *Report) *Report {
	t.Helper()
	file := filepath.Join(t.TempDir(), "report.json")
	to, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.WriteJSON(to), to.Close()); err != nil {
		t.Fatal(err)
	}
	again, err := ReadReport(file)
	if err != nil {
		t.Fatal(err)
	}
	return again
}

func rowOf(text, name string) string {
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] == name {
			return line
		}
	}
	return ""
}

func TestQuantiles(t *testing.T) {
	sorted := make([]time.Duration, 1000)
	for i := range sorted {
		sorted[i] = time.Duration(i+1) * time.Millisecond
	}
	if q := quantiles(sorted); *q != (Quantiles{P50: 500, P90: 900, P99: 990, P999: 999, Max: 1000}) {
		t.Errorf("%+v", q)
	}
	if q := quantiles(sorted[:1]); *q != (Quantiles{P50: 1, P90: 1, P99: 1, P999: 1, Max: 1}) {
		t.Errorf("%+v", q)
	}
}

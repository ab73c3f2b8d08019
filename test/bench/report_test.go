package bench

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// The relay has 200 of 400 a second, 2 ms above its limit: medians of the rounds, and of the pairs of a round.
func TestTheReportComparesTheSameRounds(t *testing.T) {
	r := &Report{Versions: map[string]string{}}
	for round, rate := range []float64{300, 100, 200} {
		slower := float64(round)
		r.Add(Result{
			Case: "publish", Round: round + 1, Rate: 2 * rate, Latency: &Quantiles{P50: 1 + slower, P99: 1 + slower},
		})
		r.Add(Result{
			Case: "drain", Round: round + 1, Rate: rate, CPU: CPU{Measured: 9, Postgres: 7, Walsender: 2, RabbitMQ: 41},
			Latency: &Quantiles{P50: 3 + slower, P99: 3 + slower},
		})
	}
	r.Add(Result{Case: "drain", Round: 4, Rate: 1, Latency: &Quantiles{}}) // its limit was interrupted
	var text bytes.Buffer
	if err := r.WriteText(&text, Cases(r.Settings)); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text.String()) {
		if row := strings.Join(strings.Fields(line), " "); strings.HasPrefix(row, "drain ") {
			const want = "drain 150 1–300 publish 0.50 9.0 0.0 7.0 2.0 41.0 57.0 0.0 0 3.50 (+2.00) 3.50 (+2.00)"
			if !strings.HasPrefix(row, want) {
				t.Errorf("%s, want %s", row, want)
			}
			return
		}
	}
	t.Errorf("there is no drain:\n%s", &text)
}

func TestQuantiles(t *testing.T) {
	sorted := make([]time.Duration, 1000)
	for i := range sorted {
		sorted[i] = time.Duration(i+1) * time.Millisecond
	}
	if q := quantiles(sorted); *q != (Quantiles{P50: 500, P90: 900, P99: 990, P999: 999, Max: 1000}) {
		t.Errorf("%+v", q)
	}
}

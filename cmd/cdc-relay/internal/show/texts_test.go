package show

import (
	"math"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
)

func TestDurationsSizesAndCountsAreReadable(t *testing.T) {
	for _, test := range []struct{ got, want string }{
		{Duration(850 * time.Millisecond), "850ms"},
		{Duration(59 * time.Second), "59s"},
		{Duration(200 * time.Second), "3m20s"},
		{Duration(-2 * time.Minute), "-2m0s"},
		{Duration(5*time.Hour + 2*time.Minute), "5h2m"},
		{Duration(99 * time.Hour), "4d3h"},
		{Duration(math.MinInt64), "-106751d23h"},
		{Bytes(0), "0 B"},
		{Bytes(1023), "1023 B"},
		{Bytes(16 << 10), "16.0 kB"},
		{Bytes(300 << 20), "300 MB"},
		{Number(1), "1"},
		{Number(-1234), "-1,234"},
		{Number(-123), "-123"},
		{Number(10_000_000), "10,000,000"},
		{Printable("a\x1b[2Jb\nc größer"), `a\x1b[2Jb\nc größer`},
		{Shortened("größer", 4), "grö…"},
		{Count(operator.Count{N: 3, Precision: operator.Exact}), "3"},
		{Count(operator.Count{N: operator.MostCounted, Precision: operator.AtLeast}), "more than 10,000"},
		{Count(operator.Count{N: 3, Precision: operator.AtLeast}), "at least 3"},
		{Count(operator.Count{N: 3_000_000, Precision: operator.Estimate}), "about 3,000,000"},
	} {
		if test.got != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
	}
}

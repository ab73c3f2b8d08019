package settings_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
)

func TestDurationsAndTimesAreParsed(t *testing.T) {
	for text, want := range map[string]string{
		"7d": "168h0m0s", "2w": "336h0m0s", "1d12h": "36h0m0s", "1w1d1h1m": "193h1m0s", "90m": "1h30m0s", "0d": "0s",
		"0s": "0s", "1.5h": "1h30m0s", "-1h": "-1h0m0s", "106751d": "2562024h0m0s", "106752d": "", "15251w": "",
		"106751d24h": "", "d": "", "": "", "1d-2h": "", "1d+2h": "", "1h2d": "", "1d2d": "", "1d2w": "", "1D": "",
		"1 d": "", "1d 2h": "", "+1d": "", "0x1d": "", "1_0d": "", "1e1d": "", "7days": "", "٧d": "",
	} {
		got, err := settings.ParseDuration(text)
		if (err != nil) != (want == "") || err == nil && got.String() != want {
			t.Errorf("%q: got %s, %v; want %s", text, got, err, want)
		}
	}
	const wrong = "wrong"
	for text, want := range map[string]string{
		"2024-11-01": "2024-11-01T00:00:00Z", "2024-11-01T10:00Z": "2024-11-01T10:00:00Z",
		"2024-11-01T10:00:00Z": "2024-11-01T10:00:00Z", "2024-11-01T10:00:00+02:00": "2024-11-01T08:00:00Z",
		"2024-11-01 10:00:00Z": "2024-11-01T10:00:00Z", "2024-11-01T10:00:00.5Z": "2024-11-01T10:00:00.5Z",
		"2024-11-01 10:00:00.25+00": "2024-11-01T10:00:00.25Z", "2024-11-01 10:00-0530": "2024-11-01T15:30:00Z",
		"2024-03-31T02:30+01:00": "2024-03-31T01:30:00Z", "2024-10-27T02:30+02:00": "2024-10-27T00:30:00Z",
		"2024-10-27T02:30+01:00": "2024-10-27T01:30:00Z", "2024-02-29": "2024-02-29T00:00:00Z",
		"0001-01-01": "0001-01-01T00:00:00Z", "0000-01-01": "0000-01-01T00:00:00Z", "2024-11-01T10:00": wrong,
		"2024-11-01 10:00:00": wrong, "2023-02-29": wrong, "2024-11-01T24:00Z": wrong, "2024-11-01T10:60Z": wrong,
		"2024-11-01T10:00:60Z": wrong, "2024-11-01T10:00+25:00": wrong, "2024-11-01T10:00 Europe/Berlin": wrong,
		"2024-11-01T10:00CET": wrong, "2024-11-1": wrong, "24-11-01": wrong, "-2024-11-01": wrong,
		"20240-11-01": wrong, "2024-11-01Z": wrong, "2024-11-01T": wrong, "9999-12-31": wrong, "infinity": wrong,
		"-infinity": wrong, "now": wrong, "today": wrong, "1700000000": wrong, "2024-11-01,": wrong,
		" 2024-11-01": wrong, "2024‑11‑01": wrong, "99999999999d": wrong, "0d": wrong, "-1d": wrong,
	} {
		age, at, err := settings.ParseMoment(text)
		if want == wrong {
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", text)) {
				t.Errorf("%q: got %s, %v, %v", text, age, at, err)
			}
			continue
		}
		if err != nil || at == nil || age != 0 || at.UTC().Format("2006-01-02T15:04:05.999Z07:00") != want {
			t.Errorf("%q: got %v, %v; want %s", text, at, err, want)
		}
	}
}

// An accepted text is either an age of more than zero or a time that has passed.
func FuzzParseMoment(f *testing.F) {
	for _, text := range []string{
		"7d", "1d12h", "2024-11-01", "2024-11-01T10:00Z", "2024-11-01 10:00:00.5+02", "99999999999d",
		"106751d23h47m16s", "infinity",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		age, at, err := settings.ParseMoment(text)
		if err == nil && (age > 0) == (at != nil) {
			t.Errorf("%q: %s and %v", text, age, at)
		}
		if err == nil && (age < 0 || at != nil && at.After(time.Now())) {
			t.Errorf("%q: %s and %v", text, age, at)
		}
	})
}

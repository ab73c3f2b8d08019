package settings

import (
	"errors"
	"fmt"
	"math"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ParseDuration parses a duration of Go, also with weeks and days before it: 2w, 7d, 1d12h.
func ParseDuration(text string) (time.Duration, error) {
	wrong := fmt.Errorf("%q: want a duration with its unit, such as 500ms, 10s, 5m, 1h or 7d", text)
	tooLong := fmt.Errorf("%q: longer than the longest duration, 106751d", text)
	const day = 24 * time.Hour
	sum, rest := time.Duration(0), text
	for _, unit := range []struct {
		letter string
		is     time.Duration
	}{{"w", 7 * day}, {"d", day}} {
		number, after, found := strings.Cut(rest, unit.letter)
		if !found {
			continue
		}
		n, err := strconv.ParseUint(number, 10, 64)
		switch {
		case errors.Is(err, strconv.ErrRange) || err == nil && n > uint64((math.MaxInt64-sum)/unit.is):
			return 0, tooLong
		case err != nil:
			return 0, wrong
		}
		sum, rest = sum+time.Duration(n)*unit.is, after
	}
	if rest == "" && text != "" {
		return sum, nil
	}
	d, err := time.ParseDuration(rest)
	switch {
	case err != nil || rest != text && strings.ContainsAny(rest[:1], "+-"):
		return 0, wrong
	case d > math.MaxInt64-sum:
		return 0, tooLong
	}
	return sum + d, nil
}

// ParseMoment parses an age (7d) or a time of the past (2026-11-01 or 2026-11-01T10:00Z). One of the results is zero. A
// date is its begin in UTC, in which commands print times. A time of day needs its zone: people know it in their own.
func ParseMoment(text string) (age time.Duration, at *time.Time, err error) {
	const times = "a time such as 2026-11-01 (UTC), 2026-11-01T10:00Z or 2026-11-01T10:00:00+02:00"
	looksLikeTime := regexp.MustCompile(`^\d+-\d`).MatchString(text)
	switch t, zoned, ok := parseTime(text); {
	case ok && !zoned:
		return 0, nil, fmt.Errorf("%q has no zone: want %s", text, times)
	case ok && t.After(time.Now()):
		return 0, nil, fmt.Errorf("%q is in the future: want a time that has passed", text)
	case ok:
		return 0, &t, nil
	}
	age, err = ParseDuration(text)
	switch {
	case looksLikeTime:
		err = fmt.Errorf("%q: want %s", text, times)
	case err != nil && strings.Contains(err.Error(), "longest"):
	case err != nil:
		err = fmt.Errorf("%q: want a duration such as 90m, 7d or 2w, or %s", text, times)
	case age <= 0:
		err = fmt.Errorf("%q: want a duration of more than zero, such as 90m, 7d or 2w", text)
	}
	return age, nil, err
}

// parseTime parses a date, or a time in the forms of RFC 3339 and psql, also without seconds. zoned is false for a time
// of day without a zone.
func parseTime(text string) (t time.Time, zoned, ok bool) {
	if t, err := time.Parse(time.DateOnly, text); err == nil {
		return t, true, true
	}
	text = strings.Replace(text, " ", "T", 1)
	for _, zone := range []string{"Z07:00", "Z0700", "Z07", ""} {
		for _, layout := range []string{"2006-01-02T15:04:05", "2006-01-02T15:04"} {
			if t, err := time.Parse(layout+zone, text); err == nil {
				return t, zone != "", true
			}
		}
	}
	return t, false, false
}

func OneOf(text string, known ...string) error {
	if slices.Contains(known, text) {
		return nil
	}
	last := len(known) - 1
	return fmt.Errorf("%q: want %s or %s", text, strings.Join(known[:last], ", "), known[last])
}

func CheckHostPort(text string) error {
	if text == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(text)
	if err != nil {
		return fmt.Errorf("%q: want host:port, such as 127.0.0.1:9464", text)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q: port %q is not a number from 0 to 65535", text, port)
	} else if n > 65535 {
		return fmt.Errorf("%q: port out of range", text)
	}
	return nil
}

// ListOf splits a text at commas; nil for "".
func ListOf(text string) (list []string) {
	if text == "" {
		return nil
	}
	for one := range strings.SplitSeq(text, ",") {
		list = append(list, strings.TrimSpace(one))
	}
	return list
}

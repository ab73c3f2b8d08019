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

// ParseMoment parses an age (7d) or a time (2026-11-01 or 2026-11-01T10:00:00Z). One of the results is zero. A date is
// its begin in UTC, in which commands print times.
func ParseMoment(text string) (age time.Duration, at *time.Time, err error) {
	for _, layout := range []string{time.RFC3339, "2006-01-02 15:04:05Z07:00", time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return 0, &t, nil
		}
	}
	age, err = ParseDuration(text)
	switch {
	case regexp.MustCompile(`^\d+-\d`).MatchString(text):
		err = fmt.Errorf("%q: want a time such as 2026-11-01 (UTC) or 2026-11-01T10:00:00Z", text)
	case err != nil && strings.Contains(err.Error(), "longest"):
	case err != nil:
		err = fmt.Errorf("%q: want a duration such as 90m, 7d or 2w, "+
			"or a time such as 2026-11-01 or 2026-11-01T10:00:00Z", text)
	case age <= 0:
		err = fmt.Errorf("%q: want a duration of more than zero, such as 90m, 7d or 2w", text)
	}
	return age, nil, err
}

func OneOf(text string, known ...string) error {
	if slices.Contains(known, text) {
		return nil
	}
	last := len(known) - 1
	return fmt.Errorf("%q: want %s or %s", text, strings.Join(known[:last], ", "), known[last])
}

// Choose sets a field to one of the known values. It keeps the default on a mistake: validate must not name it again.
func Choose[T ~string](field *T, text string, known ...string) error {
	err := OneOf(text, known...)
	if err == nil {
		*field = T(text)
	}
	return err
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

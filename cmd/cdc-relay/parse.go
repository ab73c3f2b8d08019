package main

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
)

func intSetting(name, byDefault, usage string, field func(*config) *int) *setting {
	return &setting{
		name: name, value: "NUMBER", byDefault: byDefault, usage: usage,
		set: func(c *config, text string) error {
			n, err := strconv.Atoi(text)
			if err != nil {
				return fmt.Errorf("%q: want a whole number", text)
			}
			*field(c) = n
			return nil
		},
	}
}

func durationSetting(name, byDefault, usage string, field func(*config) *time.Duration) *setting {
	return &setting{
		name: name, value: "DURATION", byDefault: byDefault, usage: usage,
		set: func(c *config, text string) error {
			d, err := parseDuration(text)
			if err != nil {
				return err
			}
			*field(c) = d
			return nil
		},
	}
}

// parseDuration parses a duration of Go, also with weeks and days before it: 2w, 7d, 1d12h.
func parseDuration(text string) (time.Duration, error) {
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

// parseMoment parses an age (7d) or a time (2026-11-01 or 2026-11-01T10:00:00Z). One of the results is zero. A date is
// its begin in UTC, in which commands print times.
func parseMoment(text string) (age time.Duration, at *time.Time, err error) {
	for _, layout := range []string{time.RFC3339, "2006-01-02 15:04:05Z07:00", time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return 0, &t, nil
		}
	}
	age, err = parseDuration(text)
	switch {
	case regexp.MustCompile(`^\d+-\d`).MatchString(text):
		err = fmt.Errorf("%q: want a time such as 2026-11-01 (UTC) or 2026-11-01T10:00:00Z", text)
	case err != nil && strings.Contains(err.Error(), "longest"):
	case err != nil:
		err = fmt.Errorf("%q: want a duration such as 90m, 7d or 2w, or a time such as 2026-11-01 or 2026-11-01T10:00:00Z", text)
	case age <= 0:
		err = fmt.Errorf("%q: want a duration of more than zero, such as 90m, 7d or 2w", text)
	}
	return age, nil, err
}

func switchSetting(name, usage string, field func(*config) *bool) *setting {
	return &setting{
		name: name, usage: usage,
		set: func(c *config, text string) error {
			on, err := strconv.ParseBool(text)
			if err != nil {
				return fmt.Errorf("%q: want true or false", text)
			}
			*field(c) = on
			return nil
		},
	}
}

// flagOnly excludes a setting from the environment and the file.
func flagOnly(s *setting) *setting {
	s.flagOnly = true
	return s
}

func oneOf(text string, known ...string) error {
	if slices.Contains(known, text) {
		return nil
	}
	last := len(known) - 1
	return fmt.Errorf("%q: want %s or %s", text, strings.Join(known[:last], ", "), known[last])
}

// checkName checks the length of an exchange or a routing key.
func checkName(text string) error {
	if len(text) > outbox.LongestName {
		return fmt.Errorf("want at most %d bytes, not %d", outbox.LongestName, len(text))
	}
	return nil
}

// choose sets a field to one of the known values. It keeps the default on a mistake: validate must not name it again.
func choose[T ~string](field *T, text string, known ...string) error {
	err := oneOf(text, known...)
	if err == nil {
		*field = T(text)
	}
	return err
}

const (
	encodeHint      = "characters such as @ : / ? # % in the user name or password must be percent-encoded"
	wantDatabaseURL = "not a URL of the form postgres://user:password@host:5432/database; " + encodeHint
)

// checkDatabaseURL never quotes the URL: what a parser takes for a port may be a part of the password.
func checkDatabaseURL(text string) error {
	if text == "" {
		return errors.New("is empty")
	}
	if atAfterHost(text) {
		return errors.New(wantDatabaseURL)
	}
	cfg, err := pgx.ParseConfig(text)
	var parseErr *pgconn.ParseConfigError
	var urlErr *url.Error
	switch {
	case err == nil && strings.Contains(text, "://") && strings.LastIndex(cfg.Host, "@") > 0:
		// A password contains an @ that is not encoded: the parser took its end for the host.
		return errors.New(wantDatabaseURL)
	case err == nil:
		return nil
	case errors.As(err, &urlErr) || strings.Contains(text, "://"):
		if detail := harmlessDetail(err); detail != "" {
			return errors.New(detail)
		}
		return errors.New(wantDatabaseURL)
	case errors.As(err, &parseErr):
		return errors.New("neither a URL, postgres://user:password@host:5432/database, nor key=value words")
	}
	return errors.New("not understood")
}

// atAfterHost reports an @ after the host. A / ? or # in a password ends the host for a parser, and the rest of the
// password then precedes an @. A literal @ there can be written as %40.
func atAfterHost(text string) bool {
	_, rest, isURL := strings.Cut(text, "://")
	end := strings.IndexAny(rest, "/?#")
	return isURL && end >= 0 && strings.Contains(rest[end:], "@")
}

// harmlessDetail names the parameter that a parser rejected, if it cannot contain a password. The error of pgconn quotes
// the URL before it says what is wrong.
func harmlessDetail(err error) string {
	text := err.Error()
	text = text[strings.LastIndex(text, "`: ")+1:]
	for _, part := range [][2]string{
		{"CA file", "sslrootcert"},
		{"CA to cert pool", "sslrootcert"},
		{"sslrootcert", "sslrootcert"},
		{"sslkey", "sslkey"},
		{"cert", "sslcert"},
		{"sslmode", "sslmode"},
		{"target_session_attrs", "target_session_attrs"},
		{"connect_timeout", "connect_timeout"},
	} {
		if strings.Contains(text, part[0]) {
			return "wrong value for " + part[1]
		}
	}
	return ""
}

func checkAMQPURL(text string) error {
	scheme, _, found := strings.Cut(text, "://")
	if !found || (scheme != "amqp" && scheme != "amqps") {
		return errors.New("want a URL that begins with amqp:// or amqps://")
	}
	if _, err := amqp.ParseURI(text); err != nil || atAfterHost(text) {
		return errors.New("not a URL of the form " + scheme + "://user:password@host:5672/vhost; " + encodeHint)
	}
	return nil
}

func checkHostPort(text string) error {
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

package pgdial

import (
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

var (
	// attempt is the address of one try in an error of pgx, with the host of the URL.
	attempt = regexp.MustCompile(`^(\S+) \((.*?)\): `)
	// wrapping is what pgx and package net write before the cause.
	wrapping = regexp.MustCompile(`(dial error|hostname resolving error|server error): |dial (tcp|unix) \S+: (connect: )?`)
)

// Text returns the text of an error. If no connection was made, it names each address and cause once, in one line: pgx
// writes a line for each try, with the address up to three times.
func Text(err error) string {
	var failed *pgconn.ConnectError
	if !errors.As(err, &failed) {
		return err.Error()
	}
	var causes []string
	for line := range strings.Lines(failed.Unwrap().Error()) {
		line = strings.TrimSpace(line)
		if m := attempt.FindStringSubmatch(line); m != nil && strings.HasPrefix(m[1], m[2]) {
			line = m[1] + ": " + line[len(m[0]):]
		}
		if line = wrapping.ReplaceAllString(line, ""); line != "" && !slices.Contains(causes, line) {
			causes = append(causes, line)
		}
	}
	return strings.Replace(err.Error(), failed.Error(), "cannot connect to Postgres: "+strings.Join(causes, "; "), 1)
}

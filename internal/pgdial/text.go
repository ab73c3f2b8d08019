package pgdial

import (
	"errors"
	"io"
	"net"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/problem"
)

var (
	// attempt is the address of one try in an error of pgx, with the host of the URL.
	attempt = regexp.MustCompile(`^(\S+) \((.*?)\): `)
	// wrapping is what pgx and package net write before the cause.
	wrapping = regexp.MustCompile(
		`(dial error|hostname resolving error|server error|tls error|failed SASL auth|ValidateConnect failed): ` +
			`|dial (tcp|unix) \S+: (connect: )?|read tcp \S+: (read: )?`)
	// severity and code surround a message of the server.
	severity = regexp.MustCompile(`(^|: )(ERROR|FATAL|PANIC): `)
	code     = regexp.MustCompile(` \(SQLSTATE [0-9A-Z]{5}\)`)
	// otherProtocol is what pgx says if the first answer is not one of Postgres.
	otherProtocol = regexp.MustCompile(`failed to receive message: (invalid body length|unknown message type).*`)
	// hungUp is what pgx says if the server closes the connection at once.
	hungUp = regexp.MustCompile(`(failed to receive message: )?(unexpected )?EOF$`)
	// driver are the other words of the driver.
	driver = strings.NewReplacer(
		"failed to receive message: ", "", "receive message failed: ", "",
		"timeout: context deadline exceeded", "timed out", "context deadline exceeded", "timed out",
	)
	// ended are the words of the driver for a connection that has ended.
	ended = strings.NewReplacer("unexpected EOF", lost, "conn closed", lost, "use of closed network connection", lost)
)

const (
	refusesTLS = "server refused TLS connection"
	lost       = "the connection to Postgres was lost"
)

// Text returns the text of an error without the words of the driver. If no connection was made, it names each address
// and cause once, in one line: pgx writes a line for each try, with the address up to three times.
func Text(err error) string {
	text := err.Error()
	var failed *pgconn.ConnectError
	if errors.As(err, &failed) {
		text = strings.Replace(text, failed.Error(), unconnected(failed), 1)
	}
	var answer *pgconn.PgError
	if errors.As(err, &answer) { // the server may translate the severity
		text = strings.Replace(text, answer.Severity+": "+answer.Message, answer.Message, 1)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || strings.HasSuffix(text, "conn closed") {
		text = ended.Replace(text)
	}
	return plain(text)
}

// Cause returns the text of an error. If no connection was made, it leaves out what the connection was for: every
// statement fails alike then.
func Cause(err error) string {
	var what *problem.Problem
	if errors.As(err, &what) && what.Err != nil {
		return what.What + ": " + Cause(what.Err)
	}
	var failed *pgconn.ConnectError
	if errors.As(err, &failed) {
		return plain(unconnected(failed))
	}
	return Text(err)
}

func unconnected(failed *pgconn.ConnectError) string {
	var causes []string
	for line := range strings.Lines(failed.Unwrap().Error()) {
		line = strings.TrimSpace(line)
		if m := attempt.FindStringSubmatch(line); m != nil && strings.HasPrefix(m[1], m[2]) {
			line = m[1] + ": " + line[len(m[0]):]
		}
		line = otherProtocol.ReplaceAllString(wrapping.ReplaceAllString(line, ""),
			"the server does not speak the protocol of Postgres")
		line = plain(hungUp.ReplaceAllString(line, "the server hung up"))
		if line != "" && !slices.Contains(causes, line) {
			causes = append(causes, line)
		}
	}
	// With sslmode=prefer a server without TLS is asked again: only the second answer counts.
	others := slices.DeleteFunc(slices.Clone(causes), func(c string) bool { return strings.HasSuffix(c, refusesTLS) })
	if len(others) > 0 {
		causes = others
	}
	return "cannot connect to Postgres: " + strings.Join(causes, "; ")
}

func plain(text string) string {
	return driver.Replace(code.ReplaceAllString(severity.ReplaceAllString(text, "$1"), ""))
}

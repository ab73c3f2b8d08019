// Package secret reads texts that contain passwords, from a setting or from a file that may change while the program
// runs.
package secret

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"
)

// Most limits the bytes of a file: a wrong name must not fill the memory.
const Most = 64 << 10

// Text is a text, or the file that contains it. The zero Text is not set. It is safe for concurrent use.
type Text struct{ Value, File string }

// IsSet reports whether there is a value or a file.
func (t Text) IsSet() bool { return t.Value != "" || t.File != "" }

// Read returns the value, or what the file contains now, without white space around it. Callers read it again for
// each connection: Kubernetes replaces a symbolic link to a mounted secret, other programs rename a new file over the
// old one, and some write into the file. An empty file is an error: somebody is about to write it. No error quotes the
// content.
func (t Text) Read() (string, error) {
	if t.File == "" {
		return strings.TrimSpace(t.Value), nil
	}
	file, err := os.Open(t.File)
	if err != nil {
		return "", err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, Most+1))
	switch text := strings.TrimSpace(string(content)); {
	case err != nil:
		return "", err
	case len(content) > Most:
		return "", fmt.Errorf("%s: is larger than %d bytes", t.File, Most)
	case text == "":
		return "", fmt.Errorf("%s: %w", t.File, ErrEmpty)
	default:
		return text, nil
	}
}

// Wrong adds the name of the file to an error about the text.
func (t Text) Wrong(err error) error {
	if t.File == "" {
		return err
	}
	return fmt.Errorf("%s: %w", t.File, err)
}

// ReadOnce reports that a file can be read only once, as a pipe: its text must be kept.
func ReadOnce(file string) bool {
	info, err := os.Stat(file)
	return err == nil && !info.Mode().IsRegular()
}

// ErrEmpty is returned for a file without content.
var ErrEmpty = errors.New("is empty")

// Origin tells of which file a rejected password is, and when the file was written; "": it is of no file.
func (t Text) Origin() string {
	if t.File == "" {
		return ""
	}
	return Origin(t.File)
}

// Origin is for a file that another library reads.
func Origin(file string) string {
	info, err := os.Stat(file)
	if err != nil {
		return "the password is that of " + file
	}
	return fmt.Sprintf("the password is that of %s, written %s", file, info.ModTime().UTC().Format(time.RFC3339))
}

// CheckPrintable rejects a line end or another control character in a URL, and does not quote it.
func CheckPrintable(url string) error {
	if strings.ContainsFunc(url, unicode.IsControl) {
		return errors.New("contains a control character, such as a line end")
	}
	return nil
}

// Encode is advice for a URL that a parser does not understand.
const Encode = "characters such as @ : / ? # % in the user name or password must be percent-encoded"

// Scheme returns the scheme of a URL, with ://, if it is a known one; other text may be a part of a password.
func Scheme(address string) string {
	const known = " postgres postgresql postgis psql pgsql pg timescale timescaledb cockroachdb mysql mysql2 mariadb " +
		"mssql sqlserver sqlite sqlite3 oracle mongodb mongodb+srv redis rediss http https ws wss tcp ssl file unix " +
		"amqp amqps amqp+ssl pyamqp rabbitmq rabbitmqs mqtt mqtts stomp kafka nats sqs "
	scheme, _, isURL := strings.Cut(address, "://")
	if !isURL || !strings.Contains(known, " "+strings.ToLower(scheme)+" ") {
		return ""
	}
	return scheme + "://"
}

// AtAfterHost reports an @ after the host of a URL. A / ? or # in a password ends the host for a parser, and the rest
// of the password then precedes an @. A literal @ there can be written as %40.
func AtAfterHost(address string) bool {
	_, rest, isURL := strings.Cut(address, "://")
	end := strings.IndexAny(rest, "/?#")
	return isURL && end >= 0 && strings.Contains(rest[end:], "@")
}

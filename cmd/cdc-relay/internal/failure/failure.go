// Package failure has the errors that decide how a command ends: its exit code, and the hint below the text of the
// error. A hint is one line that a person can type to fix the error.
package failure

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
)

// Usage is a mistake in the command line, the environment or the configuration file.
type Usage struct{ text string }

func (e *Usage) Error() string { return e.text }

// Usagef returns a Usage.
func Usagef(format string, args ...any) error { return &Usage{text: fmt.Sprintf(format, args...)} }

// IsUsage reports whether the user made a mistake.
func IsUsage(err error) bool { return errors.As(err, new(*Usage)) }

type notFound struct{ error }

func (e notFound) Unwrap() error { return e.error }

// NotFound marks the error of a command whose message does not exist. It has its own exit code.
func NotFound(err error) error { return notFound{err} }

// IsNotFound reports whether the message of a command does not exist.
func IsNotFound(err error) bool { return errors.As(err, new(notFound)) }

type logged struct{ error }

func (e logged) Unwrap() error { return e.error }

// Logged marks an error that is in the log already. It is not printed again, because tools read the standard error as
// JSON.
func Logged(err error) error { return logged{err} }

// IsLogged reports whether the error is in the log already.
func IsLogged(err error) bool { return errors.As(err, new(logged)) }

type hinted struct {
	error
	hint string
}

func (e hinted) Hint() string  { return e.hint }
func (e hinted) Unwrap() error { return e.error }

// WithHint adds a hint to an error. The text of the error stays the same.
func WithHint(err error, hint string) error { return hinted{err, hint} }

// Lines returns the text of an error for a person, without passwords: each mistake of a Usage in a line, any other
// error in one line. It returns none for nil.
func Lines(err error) []string {
	switch {
	case err == nil:
		return nil
	case !IsUsage(err):
		return []string{show.OneLine(pgdial.Text(err))}
	}
	mistakes := strings.Split(string(show.Redact([]byte(err.Error()))), "\n")
	for i := range mistakes {
		mistakes[i] = show.Printable(strings.TrimSpace(mistakes[i]))
	}
	return mistakes
}

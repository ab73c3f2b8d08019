// Package problem has the error that tells a person what is wrong, where, and which command or SQL fixes it.
package problem

import (
	"errors"
	"fmt"
)

// Problem is an error that only a person can fix; a retry does not help.
type Problem struct {
	What string // what is wrong and where, one line
	Fix  string // the command or SQL that fixes it
	Err  error  // the cause, or nil
	// Denied: the relay's role lacks a privilege, which Fix grants. It may lack others.
	Denied bool
}

// New returns a Problem without a cause.
func New(fix, format string, args ...any) *Problem {
	return &Problem{What: fmt.Sprintf(format, args...), Fix: fix}
}

// Of returns a Problem with its cause.
func Of(cause error, fix, format string, args ...any) *Problem {
	return &Problem{What: fmt.Sprintf(format, args...), Fix: fix, Err: cause}
}

func (p *Problem) Error() string {
	if p.Err == nil {
		return p.What
	}
	return p.What + ": " + p.Err.Error()
}

func (p *Problem) Unwrap() error { return p.Err }

// Hint returns Fix.
func (p *Problem) Hint() string { return p.Fix }

// Is reports whether only a person can fix the error.
func Is(err error) bool {
	var p *Problem
	return errors.As(err, &p)
}

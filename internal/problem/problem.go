// Package problem holds the error that tells a person what to do: what is
// wrong, where, and the command or SQL that fixes it.
package problem

import (
	"errors"
	"fmt"
)

// Problem is something that only a person can fix: waiting and trying again
// does not help.
type Problem struct {
	What string // what is wrong and where, one line
	Fix  string // the command or SQL that fixes it
	Err  error  // the cause, or nil
}

// New makes a Problem without a cause.
func New(fix, format string, args ...any) *Problem {
	return &Problem{What: fmt.Sprintf(format, args...), Fix: fix}
}

func (p *Problem) Error() string {
	if p.Err == nil {
		return p.What
	}
	return p.What + ": " + p.Err.Error()
}

func (p *Problem) Unwrap() error { return p.Err }

// Hint is the command or SQL that fixes it.
func (p *Problem) Hint() string { return p.Fix }

// Is tells whether an error is something that only a person can fix.
func Is(err error) bool {
	var p *Problem
	return errors.As(err, &p)
}

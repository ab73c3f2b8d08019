// Package pgcode reads the SQLSTATE of an error (manual, appendix "PostgreSQL Error Codes"). pgerrcode names the codes.
package pgcode

import (
	"errors"
	"slices"
)

// The classes are the first two characters of a code.
const (
	DataException       = "22"
	ConstraintViolation = "23"
	SyntaxOrAccess      = "42" // also a missing column or table
	Resources           = "53" // memory, disk or a configured limit
	TooComplex          = "54" // a value or statement is beyond a limit of the server
)

// Of returns the SQLSTATE of a server's answer; "" for other errors.
func Of(err error) string {
	var answer interface {
		error
		SQLState() string
	}
	if errors.As(err, &answer) {
		return answer.SQLState()
	}
	return ""
}

// Is reports whether the server answered with one of these codes.
func Is(err error, codes ...string) bool { return slices.Contains(codes, Of(err)) }

// Class returns the class of a server's answer; "" for other errors.
func Class(err error) string {
	if code := Of(err); len(code) == 5 {
		return code[:2]
	}
	return ""
}

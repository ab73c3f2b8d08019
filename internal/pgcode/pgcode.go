// Package pgcode names the SQLSTATEs that the relay distinguishes (manual, appendix "PostgreSQL Error Codes").
package pgcode

import (
	"errors"
	"slices"
)

const (
	AdminShutdown          = "57P01"
	AmbiguousFunction      = "42725"
	CannotCoerce           = "42846"
	CannotConnectNow       = "57P03"
	CheckViolation         = "23514"
	DatatypeMismatch       = "42804"
	DuplicateObject        = "42710"
	DuplicateStatement     = "42P05"
	DuplicateTable         = "42P07"
	InsufficientPrivilege  = "42501"
	InvalidAuthorization   = "28000"
	InvalidCatalog         = "3D000"
	InvalidName            = "42602"
	InvalidParameter       = "22023"
	InvalidPassword        = "28P01"
	InvalidStatement       = "26000"
	LimitExceeded          = "53400"
	LockNotAvailable       = "55P03"
	NotInPrerequisiteState = "55000"
	NotSupported           = "0A000"
	ObjectInUse            = "55006"
	ProtocolViolation      = "08P01"
	QueryCanceled          = "57014"
	ReadOnlyTransaction    = "25006"
	TooManyConnections     = "53300"
	UndefinedColumn        = "42703"
	UndefinedFunction      = "42883"
	UndefinedFile          = "58P01"
	UndefinedObject        = "42704"
	UndefinedTable         = "42P01"
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

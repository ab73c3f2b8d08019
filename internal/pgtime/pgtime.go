// Package pgtime converts times between Postgres and Go. A null is nil, because every time.Time is a time that a column
// can have: applications in Go store the zero time by accident.
package pgtime

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// Far replaces infinity. Postgres cannot store this time.
func Far() time.Time { return time.Date(294277, 1, 1, 0, 0, 0, 0, time.UTC) }

// Past replaces -infinity. Postgres cannot store this time.
func Past() time.Time { return time.Date(-4713, 1, 1, 0, 0, 0, 0, time.UTC) }

// FromColumn returns a time in UTC: nil for null, Far or Past for an infinity.
func FromColumn(t pgtype.Timestamptz) *time.Time {
	if !t.Valid {
		return nil
	}
	at := FromRequired(t)
	return &at
}

// FromRequired is FromColumn for a column that has no nulls.
func FromRequired(t pgtype.Timestamptz) time.Time {
	switch t.InfinityModifier {
	case pgtype.Infinity:
		return Far()
	case pgtype.NegativeInfinity:
		return Past()
	}
	return t.Time.UTC()
}

// ToColumn is the inverse of FromColumn.
func ToColumn(t *time.Time) pgtype.Timestamptz {
	switch {
	case t == nil:
		return pgtype.Timestamptz{}
	case t.Equal(Far()):
		return pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
	case t.Equal(Past()):
		return pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	}
	return pgtype.Timestamptz{Time: *t, Valid: true}
}

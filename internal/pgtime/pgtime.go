// Package pgtime converts times between Postgres and Go.
package pgtime

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// Far replaces infinity. Postgres cannot store this time.
func Far() time.Time { return time.Date(294277, 1, 1, 0, 0, 0, 0, time.UTC) }

// Past replaces -infinity. Postgres cannot store this time.
func Past() time.Time { return time.Date(-4713, 1, 1, 0, 0, 0, 0, time.UTC) }

// FromColumn returns a time in UTC: the zero time for null, Far or Past for an infinity.
func FromColumn(t pgtype.Timestamptz) time.Time {
	switch {
	case !t.Valid:
		return time.Time{}
	case t.InfinityModifier == pgtype.Infinity:
		return Far()
	case t.InfinityModifier == pgtype.NegativeInfinity:
		return Past()
	}
	return t.Time.UTC()
}

// ToColumn is the inverse of FromColumn.
func ToColumn(t time.Time) pgtype.Timestamptz {
	switch {
	case t.IsZero():
		return pgtype.Timestamptz{}
	case t.Equal(Far()):
		return pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
	case t.Equal(Past()):
		return pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	}
	return pgtype.Timestamptz{Time: t, Valid: true}
}

package store

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// far and past replace the infinities. Postgres cannot store these times.
func far() time.Time  { return time.Date(294277, 1, 1, 0, 0, 0, 0, time.UTC) }
func past() time.Time { return time.Date(-4713, 1, 1, 0, 0, 0, 0, time.UTC) }

// fromColumn returns the zero time for null, and far or past for an infinity, as the decoder of the stream does.
func fromColumn(t pgtype.Timestamptz) time.Time {
	switch {
	case !t.Valid:
		return time.Time{}
	case t.InfinityModifier == pgtype.Infinity:
		return far()
	case t.InfinityModifier == pgtype.NegativeInfinity:
		return past()
	}
	return t.Time.UTC()
}

// toColumn is the inverse of fromColumn.
func toColumn(t time.Time) pgtype.Timestamptz {
	switch {
	case t.IsZero():
		return pgtype.Timestamptz{}
	case t.Equal(far()):
		return pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
	case t.Equal(past()):
		return pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	}
	return pgtype.Timestamptz{Time: t, Valid: true}
}

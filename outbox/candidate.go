package outbox

import (
	"math"
	"time"
)

// Candidate is a row that a claim may take: what is known of it before it is locked.
type Candidate struct {
	Ref
	OrderingKey *string
	// Size is roughly what the message takes of memory, in bytes.
	Size int
	// Ready tells that the row may leave now.
	Ready bool
	// Superseded tells that a newer row with its coalesce and ordering key waits. It is not told of rows without a key.
	Superseded bool
	// Due is when the row's time came; zero for rows without one.
	Due time.Time
}

// Run is rows of one ordering key, in the order of their ids; at least one.
type Run []Candidate

// Runs splits keyed rows that are sorted by key.
func Runs(rows []Candidate) (runs []Run) {
	for i, row := range rows {
		if i == 0 || *row.OrderingKey != *rows[i-1].OrderingKey {
			runs = append(runs, nil)
		}
		runs[len(runs)-1] = append(runs[len(runs)-1], row)
	}
	return runs
}

// Fresh says which rows without a time of their own a claim may take: those of an age, up to an id.
type Fresh struct {
	Age  time.Duration
	UpTo int64
}

// AllFresh takes all rows without a time of their own.
func AllFresh() Fresh { return Fresh{UpTo: math.MaxInt64} }

// NoFresh takes none of them.
func NoFresh() Fresh { return Fresh{UpTo: math.MinInt64} }

package outbox

import (
	"math"
	"time"
)

// Candidate is a row that a claim may take, as known before the lock.
type Candidate struct {
	Ref
	OrderingKey *string
	// Size is roughly the memory of the message, in bytes.
	Size int
	// Ready: the row may leave now.
	Ready bool
	// Superseded: a newer row with the same coalesce key and ordering key waits. It is not set for rows without an
	// ordering key.
	Superseded bool
	// Traced: a session has locked the row and not deleted it, and may still lock it. Only keyless rows without a time
	// have it.
	Traced bool
	// Due is the row's available_at; nil: none.
	Due *time.Time
}

// Place is the place of a due row in the order in which due rows are claimed.
type Place struct {
	Due time.Time
	ID  int64
}

// Run is one or more rows of one ordering key, in id order.
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

// Fresh selects rows without a time that a claim may take: at least Age old, with ids up to UpTo. Keyed: FindBacklog
// also finds rows with an ordering key.
type Fresh struct {
	Age   time.Duration
	UpTo  int64
	Keyed bool
}

// AllFresh selects all rows without a time.
func AllFresh() Fresh { return Fresh{UpTo: math.MaxInt64} }

// NoFresh selects none of them.
func NoFresh() Fresh { return Fresh{UpTo: math.MinInt64} }

// Range are rows without a key and without a time that a claim finds and locks at once.
type Range struct {
	// From and UpTo are the first and the last id.
	From, UpTo int64
	// Rows is how many rows are locked at most. Larger rows than Size bytes are skipped.
	Rows, Size int
	// Held are ids that are not locked.
	Held []int64
}

package outbox

import "time"

// Candidate is a row that a sweep has found and may read.
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
	// Due is the row's available_at; nil: none.
	Due *time.Time
}

// Place is the place of a due row in the order in which sweeps read due rows.
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

// Range are rows without a key and without a time that a sweep reads.
type Range struct {
	// From and UpTo are the first and the last id.
	From, UpTo int64
	// Rows and Bytes are how much is read at most; the first row is read in any case.
	Rows, Bytes int
	// Held are ids that are left out.
	Held []int64
}

// Page is what was read of a Range.
type Page struct {
	// Messages are the rows, in the order of ids. All of them committed before the position.
	Messages []*Message
	Position uint64
	// Traced are rows that a session may have locked.
	Traced []int64
	// UpTo: no other rows have ids up to it.
	UpTo int64
}

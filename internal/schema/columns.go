package schema

import (
	"slices"
	"strings"
)

// column is a column of the tables of an outbox. This is their only list in Go: others are made from it or compared
// with it.
type column struct {
	name string
	part part
	// unread: neither sweeps nor the stream read it.
	unread bool
}

// part says which tables have a column, and who sets it.
type part int

const (
	ofMessage    part = 1 << iota // all tables; the application sets it
	ofRow                         // all tables; applications leave it to its default
	ofRelay                       // all tables; the relay writes it
	ofOutbox                      // only the outbox; the application may set it
	ofDeadLetter                  // only the dead letters
	ofHistory                     // only the history

	copied = ofMessage | ofRow // dead letters and history copy it from their row
	shared = copied | ofRelay
)

func columns() []column {
	return []column{
		{"id", ofRow, false},
		{"message_id", ofMessage, false},
		{"exchange", ofMessage, false},
		{"routing_key", ofMessage, false},
		{"ordering_key", ofMessage, false},
		{"payload", ofMessage, false},
		{"payload_bytes", ofMessage, false},
		{"headers", ofMessage, false},
		{"properties", ofMessage, false},
		{"redacted_payload", ofMessage, true},
		{"schema_version", ofRow, false},
		{"created_at", ofMessage, false},
		{"available_at", ofOutbox, false},
		{"attempts", ofRelay, false},
		{"last_error", ofRelay, true},
		{"possible_duplicate", ofRelay, false},
		{"expires_at", ofMessage, false},
		{"max_attempts", ofMessage, false},
		{"coalesce_key", ofMessage, true},
		{"failure_reason", ofDeadLetter, true},
		{"dead_at", ofDeadLetter, true},
		{"published_at", ofHistory, true},
	}
}

// names returns the columns of these parts.
func names(parts part) (names []string) {
	for _, c := range columns() {
		if c.part&parts != 0 {
			names = append(names, c.name)
		}
	}
	return names
}

// Copied are the columns that dead letters and history copy from their row, id first.
func Copied() []string { return names(copied) }

// Kept are the columns of the outbox that the history has too.
func Kept() []string { return names(shared) }

// Read are the columns that sweeps and the stream read.
func Read() (names []string) {
	for _, c := range columns() {
		if !c.unread {
			names = append(names, c.name)
		}
	}
	return names
}

// List writes columns for a statement, with an alias of their table, such as "r.", or "".
func List(columns []string, alias string) string { return alias + strings.Join(columns, ", "+alias) }

// Insert are the columns that an application may set: those of outbox.Table.InsertSQL, and created_at, which models of
// ORMs set. The others are the relay's own. With INSERT on id, attempts or last_error, one application could take the
// place of another one's messages, or make them dead letters.
func Insert() []string { return names(ofMessage | ofOutbox) }

// Returning are the columns that an ORM asks for with INSERT … RETURNING. Who may SELECT them sees how many messages
// others send, and their ids, but no content.
func Returning() []string { return []string{"id", "message_id"} }

// NotSet are the columns that an application must not set.
func NotSet() []string { return append([]string{"id"}, names(ofRelay)...) }

// IsOwn reports whether the relay needs a column with this name in the outbox or its dead-letter table.
func IsOwn(name string) bool { return slices.Contains(names(shared|ofOutbox|ofDeadLetter), name) }

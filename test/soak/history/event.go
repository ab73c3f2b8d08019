// Package history keeps what happened in a soak run and checks it against the
// promises of docs/guarantees.md. It knows nothing of Postgres, RabbitMQ or the
// relay: those who drive them tell a Recorder, which writes one JSON object a line,
// and Check reads the lines again.
package history

import (
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Kind is what a message was made for, and so what is to become of it.
type Kind string

// The kinds of messages.
const (
	Plain      Kind = "plain"
	Binary     Kind = "binary"
	Large      Kind = "large"
	Scheduled  Kind = "scheduled"  // must not arrive before NotBefore
	Unroutable Kind = "unroutable" // no queue takes it: a dead letter after its retries
	Impossible Kind = "impossible" // passes the table's checks, and AMQP cannot carry it: a dead letter at once
)

// Arrives tells whether messages of the kind can be delivered at all.
func (k Kind) Arrives() bool { return k != Unroutable && k != Impossible }

// Message is one row that a transaction inserts.
type Message struct {
	ID   outbox.UUID `json:"id"`
	Kind Kind        `json:"kind"`
	// Key is the ordering key, empty for none. One writer owns a key and writes it in
	// transactions that follow one another, so that its order is defined.
	Key string `json:"key,omitempty"`
	// Seq is the message's place within its key, from 1. Every insert takes one, also those that are rolled back.
	Seq int `json:"seq,omitempty"`
	// NotBefore is when a scheduled message becomes due, on the run's clock.
	NotBefore time.Duration `json:"not_before,omitempty"`
	// Discarded: inserted behind a savepoint that was rolled back. It must never arrive.
	Discarded bool `json:"discarded,omitempty"`
}

// Transaction is what a writer is about to end. Beside its messages it inserts a business row with its ID, which tells
// afterwards whether a transaction whose end was not heard of was committed.
type Transaction struct {
	ID       int64     `json:"id"` // unique in the run, from 1
	Writer   int       `json:"writer"`
	Messages []Message `json:"messages"`
}

// Outcome is what a writer knows of a transaction's end.
type Outcome string

// The outcomes of a transaction.
const (
	Committed  Outcome = "committed"   // the server said so
	RolledBack Outcome = "rolled_back" // the writer rolled back, or failed before COMMIT was sent
	Unknown    Outcome = "unknown"     // COMMIT was sent, and no answer came
)

// Delivery is one arrival at a consumer.
type Delivery struct {
	Message outbox.UUID `json:"message"`
	Queue   string      `json:"queue,omitempty"`
	// Marked: it carried x-possible-duplicate.
	Marked bool `json:"marked,omitempty"`
	// Redelivered: the broker says that it handed this copy out before, on a connection that broke. A message that
	// arrived already and comes again so is not a repeat of the relay's.
	Redelivered bool `json:"redelivered,omitempty"`
	// Damaged says in which way it was not as written: body, headers, properties. Empty: as written.
	Damaged string `json:"damaged,omitempty"`
}

// Fault is one disturbance.
type Fault struct {
	ID   int    `json:"id"` // unique in the run, from 1
	Name string `json:"name"`
	// Repeats is how many messages the promises allow to be published again because of it: 0 for a clean stop, else
	// what was in flight when a relay was killed or lost a connection.
	Repeats int `json:"repeats"`
	// Refuses: the broker refuses messages while it lasts, so that attempts are charged and dead letters are right.
	Refuses bool `json:"refuses,omitempty"`
	// LosesCommits: transactions whose commit was acknowledged may be lost by the database itself (a failover without
	// synchronous replication). Their messages may have left.
	LosesCommits bool `json:"loses_commits,omitempty"`
	// LosesUnanswered: transactions whose COMMIT was not answered may be lost after their messages have left (a failover
	// to a synchronous standby, for which the logical stream does not wait).
	LosesUnanswered bool `json:"loses_unanswered,omitempty"`
	// Unmarked: repeats because of it may come without x-possible-duplicate. A relay that was frozen while another took
	// over sends, when it wakes up, what it had in hand; see docs/contract.md.
	Unmarked bool `json:"unmarked,omitempty"`
	// EmptiesQueues: queues are deleted with what is in them, so that messages which the broker had confirmed need not
	// arrive. They are counted apart, not as lost.
	EmptiesQueues bool `json:"empties_queues,omitempty"`
	// Detail is what the seed chose: which relay, which connection, how long.
	Detail string `json:"detail,omitempty"`
}

// Row is a message that is still in a table at the end of the run.
type Row struct {
	Message    outbox.UUID `json:"message"`
	DeadLetter bool        `json:"dead_letter,omitempty"`
	Attempts   int         `json:"attempts,omitempty"`
	Reason     string      `json:"reason,omitempty"` // failure_reason of a dead letter
	LastError  string      `json:"last_error,omitempty"`
}

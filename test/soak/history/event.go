// Package history records what happens in a soak run and checks it against the promises of docs/guarantees.md. It knows
// nothing of Postgres, RabbitMQ or the relay. The soak reports to a Recorder, which writes one JSON object a line;
// Check reads the lines.
package history

import (
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Kind is the purpose of a message, and decides what must happen to it.
type Kind string

// The kinds of messages.
const (
	Plain      Kind = "plain"
	Binary     Kind = "binary"
	Large      Kind = "large"
	Scheduled  Kind = "scheduled"  // must not arrive before NotBefore
	Unroutable Kind = "unroutable" // no queue takes it: a dead letter after its retries
	Impossible Kind = "impossible" // the table accepts it but AMQP cannot carry it: a dead letter at once
)

func (k Kind) arrives() bool { return k != Unroutable && k != Impossible }

// Message is one row that a transaction inserts.
type Message struct {
	ID   outbox.UUID `json:"id"`
	Kind Kind        `json:"kind"`
	// Key is the ordering key; "": none. One writer owns a key and uses it in one transaction after the other, so that
	// its order is defined.
	Key string `json:"key,omitempty"`
	// Seq is the message's position in its key, from 1. Every insert takes one, also if it is rolled back.
	Seq int `json:"seq,omitempty"`
	// NotBefore is when a scheduled message is due, on the run's clock.
	NotBefore time.Duration `json:"not_before,omitempty"`
	// Discarded: inserted after a savepoint that was rolled back. It must never arrive.
	Discarded bool `json:"discarded,omitempty"`
	// Content describes everything that must arrive unchanged.
	Content string `json:"content,omitempty"`
	// Reason is the failure_reason of a message that cannot be delivered.
	Reason string `json:"reason,omitempty"`
}

// Transaction is a transaction that a writer is about to end. Besides its messages it inserts a business row with its
// ID. The row shows at the end whether a transaction with an unanswered COMMIT was committed.
type Transaction struct {
	ID       int64     `json:"id"` // unique in the run, from 1
	Writer   int       `json:"writer"`
	Messages []Message `json:"messages"`
}

// Outcome is what a writer knows about the end of a transaction.
type Outcome string

// The outcomes of a transaction.
const (
	Committed  Outcome = "committed"   // the server acknowledged it
	RolledBack Outcome = "rolled_back" // the writer rolled back, or failed before it sent COMMIT
	Unknown    Outcome = "unknown"     // COMMIT was sent, and no answer came
)

// Delivery is one arrival at a consumer.
type Delivery struct {
	Message outbox.UUID `json:"message"`
	Queue   string      `json:"queue,omitempty"`
	// Marked: it carried x-possible-duplicate.
	Marked bool `json:"marked,omitempty"`
	// Redelivered: the broker delivered this copy before, on a connection that broke. Such a second arrival is not a
	// duplicate of the relay's.
	Redelivered bool `json:"redelivered,omitempty"`
	// Content is as in Message, of what arrived.
	Content string `json:"content,omitempty"`
}

// Fault is one fault of the run.
type Fault struct {
	ID   int    `json:"id"` // unique in the run, from 1
	Name string `json:"name"`
	// Duplicates: the promises allow duplicates because of it. They allow none after a clean stop.
	Duplicates bool `json:"duplicates,omitempty"`
	// Refuses: the broker rejects messages meanwhile, so attempts and dead letters are expected.
	Refuses bool `json:"refuses,omitempty"`
	// Unmarked: duplicates because of it may lack x-possible-duplicate. A relay that was frozen while another took over
	// sends what it had in hand when it wakes up; see docs/delivery.md.
	Unmarked bool `json:"unmarked,omitempty"`
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

// earlyTolerance is how much too early a scheduled message may appear to arrive: its due time is on the database's
// clock, its arrival on the recorder's.
const earlyTolerance = 50 * time.Millisecond

// line is one line of a history: the time, and one of the others. Times are nanoseconds since the recorder began.
//
//	{"at":1000,"ending":{"id":1,"writer":0,"messages":[{"id":"…","kind":"plain","key":"k1","seq":1}]}}
//	{"at":2000,"ended":{"id":1,"outcome":"committed"}}
//	{"at":3000,"delivered":{"message":"…","queue":"soak.1"}}
//	{"at":4000,"began":{"id":1,"name":"relay-kill","duplicates":true}}
//	{"at":5000,"healed":1}
//	{"at":6000,"remaining":{"message":"…","dead_letter":true,"attempts":6,"reason":"retries_exhausted"}}
//	{"at":7000,"kept":1}
type line struct {
	At        time.Duration `json:"at,omitempty"`
	Ending    *Transaction  `json:"ending,omitempty"`
	Ended     *ended        `json:"ended,omitempty"`
	Delivered *Delivery     `json:"delivered,omitempty"`
	Began     *Fault        `json:"began,omitempty"`
	Healed    *int          `json:"healed,omitempty"`
	Remaining *Row          `json:"remaining,omitempty"`
	Kept      *int64        `json:"kept,omitempty"`
}

type ended struct {
	ID      int64   `json:"id"`
	Outcome Outcome `json:"outcome"`
}

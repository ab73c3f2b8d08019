package history

import (
	"strconv"
	"time"
)

// Result is the result of a verdict.
type Result string

// The results.
const (
	Pass Result = "pass"
	Fail Result = "fail"
	// Incomplete: there is no violation, but the history proves little: it was interrupted, or nothing was
	// acknowledged.
	Incomplete Result = "incomplete"
)

// Verdict is the result of checking a history. The names in its JSON form are stable; they are in the struct tags here
// and below. Durations, and times since the start of the run, are in milliseconds and have names that end in _ms. Run
// is copied from the history: nanoseconds, with names that end in _ns.
type Verdict struct {
	Result Result `json:"result"`
	// Incomplete says why the final state is unknown or nothing was proved. Empty: neither is the case.
	Incomplete string `json:"incomplete,omitempty"`
	Run        Run    `json:"run"`
	// Lines is how many lines were read, with that of the run.
	Lines int `json:"lines"`
	// Duration is the time of the last line.
	Duration   Milliseconds  `json:"duration_ms"`
	Counters   Counters      `json:"counters"`
	Delivery   Delivered     `json:"delivery"`
	Faults     []FaultReport `json:"faults"`
	Violations []Violation   `json:"violations"` // by code; empty: none
}

// Counters are those of RabbitMQ's Jepsen tests, and more. They count messages unless stated otherwise. Messages
// discarded after a savepoint are not in Attempt, Acknowledged, Unknown and RolledBack.
type Counters struct {
	// Attempt: COMMIT was sent, or may have been.
	Attempt int `json:"attempt"`
	// Acknowledged: COMMIT was answered.
	Acknowledged int `json:"acknowledged"`
	// OK: acknowledged, and delivered at least once, or dead-lettered if the kind cannot arrive.
	OK int `json:"ok"`
	// Lost: committed, but neither delivered nor in a table.
	Lost int `json:"lost"`
	// Duplicated counts arrivals that are duplicates of the relay's: DuplicatedMarked with x-possible-duplicate,
	// DuplicatedUnmarked without. DuplicatedOvertaken of the latter were the first unmarked copy after a marked one:
	// copies on two connections can overtake each other, so these alone break no promise.
	Duplicated          int `json:"duplicated"`
	DuplicatedMarked    int `json:"duplicated_marked"`
	DuplicatedUnmarked  int `json:"duplicated_unmarked"`
	DuplicatedOvertaken int `json:"duplicated_overtaken"`
	// Unexpected: it arrived or is in a table, but was never committed: rolled back, discarded, or of an unknown id.
	Unexpected int `json:"unexpected"`
	// Recovered: COMMIT was not answered, the business row shows that it succeeded, and the message was delivered, or
	// dead-lettered if the kind cannot arrive.
	Recovered int `json:"recovered"`

	// Unknown: COMMIT was not answered.
	Unknown int `json:"unknown"`
	// RolledBack: of transactions that were rolled back.
	RolledBack int `json:"rolled_back"`
	Discarded  int `json:"discarded"`
	// Delivered: arrived at least once, whatever the outcome of its transaction.
	Delivered int `json:"delivered"`
	// Redelivered counts redeliveries by the broker.
	Redelivered int `json:"redelivered"`
	// DeadLettered: in the dead-letter table at the end.
	DeadLettered int `json:"dead_lettered"`
	// Waiting: in the outbox at the end.
	Waiting int `json:"waiting"`
	// OutOfOrder: its first arrival came after that of a later message of its key.
	OutOfOrder int `json:"out_of_order"`
	// Early counts arrivals before they were due.
	Early int `json:"early"`
	// Damaged counts arrivals that differ from what was written.
	Damaged             int `json:"damaged"`
	NeedlessDeadLetters int `json:"needless_dead_letters"`
	NeedlessAttempts    int `json:"needless_attempts"`
}

// Delivered is how fast and how steadily messages arrived.
type Delivered struct {
	// PerSecond is the number of messages that arrived divided by the time from the first arrival to the last.
	PerSecond float64 `json:"per_second"`
	// Latency is from the answer to COMMIT until the first arrival, of the LatencyOf messages without a fault or its
	// recovery in between; scheduled ones are excluded.
	LatencyOf  int          `json:"latency_of"`
	LatencyP50 Milliseconds `json:"latency_p50_ms"`
	LatencyP99 Milliseconds `json:"latency_p99_ms"`
	LatencyMax Milliseconds `json:"latency_max_ms"`
}

// FaultReport describes one fault and its effects.
type FaultReport struct {
	ID     int          `json:"id"`
	Name   string       `json:"name"`
	Detail string       `json:"detail,omitempty"`
	Began  Milliseconds `json:"began_ms"`
	// Healed is absent if the fault was not healed within the history.
	Healed *Milliseconds `json:"healed_ms,omitempty"`
	// Recovery is the time from Healed to the first arrival of a message that was committed after Healed, without
	// redeliveries. Absent: none arrived.
	Recovery *Milliseconds `json:"recovery_ms,omitempty"`
	// Silence is the part of Recovery after the first such commit. Run.RecoverWithin judges it: before, there was
	// nothing to deliver. Absent: nothing was committed after Healed.
	Silence *Milliseconds `json:"silence_ms,omitempty"`
	// CaughtUp is the time from Healed until everything committed before Healed had arrived, except what is scheduled,
	// dead-lettered. Absent: something never arrived.
	CaughtUp *Milliseconds `json:"caught_up_ms,omitempty"`
	// Duplicates is how many duplicates the fault is charged with, DuplicatesAllowed how many are allowed.
	Duplicates        int `json:"duplicates"`
	DuplicatesAllowed int `json:"duplicates_allowed"`
}

// Code names a kind of violation. Codes are stable.
type Code string

// The codes of violations.
const (
	Lost               Code = "lost"                 // committed, but neither delivered nor in a table
	Unexpected         Code = "unexpected"           // delivered or in a table, but never committed
	UnmarkedDuplicate  Code = "unmarked_duplicate"   // a second copy without x-possible-duplicate
	TooManyDuplicates  Code = "too_many_duplicates"  // more than the faults so far allow
	OutOfOrder         Code = "out_of_order"         // arrived after a later message of its key
	Early              Code = "early"                // arrived before it was due
	Damaged            Code = "damaged"              // differs from what was written
	NeedlessDeadLetter Code = "needless_dead_letter" // dead-lettered, although the broker had no reason to reject it
	// Charged an attempt, although the broker had no reason to reject it.
	NeedlessAttempt Code = "needless_attempt"
	Stuck           Code = "stuck"         // still in the outbox when it should be empty
	TwoRows         Code = "two_rows"      // more than one row of one message
	SlowRecovery    Code = "slow_recovery" // nothing new was delivered for too long after a fault
	LostCommit      Code = "lost_commit"   // the database lost a commit that it had acknowledged
	Contradiction   Code = "contradiction" // the history contradicts itself
)

// Violation is a promise that was broken, once or more often.
type Violation struct {
	Code  Code `json:"code"`
	Count int  `json:"count"`
	// First are the earliest findings, at most 20.
	First []Finding `json:"first"`
}

// Finding is one occurrence of a violation.
type Finding struct {
	At Milliseconds `json:"at_ms"` // when it was noticed, since the start of the run
	// What is a sentence: which message, transaction or key, and what was seen.
	What string `json:"what"`
}

// Milliseconds is a duration whose JSON form is a number of milliseconds with up to three decimals.
type Milliseconds time.Duration

// String formats it for people.
func (m Milliseconds) String() string {
	d := time.Duration(m)
	switch {
	case d >= 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= 100*time.Millisecond:
		return d.Round(time.Millisecond).String()
	default:
		return d.Round(10 * time.Microsecond).String()
	}
}

// MarshalJSON writes the number.
func (m Milliseconds) MarshalJSON() ([]byte, error) {
	micros := time.Duration(m).Round(time.Microsecond).Microseconds()
	return strconv.AppendFloat(nil, float64(micros)/1000, 'f', -1, 64), nil
}

package history

import (
	"strconv"
	"time"
)

// Result is what a verdict comes to.
type Result string

// The results.
const (
	Pass Result = "pass"
	Fail Result = "fail"
	// Incomplete: no violation was found, and the history proves little: it was cut short, or nothing was acknowledged.
	Incomplete Result = "incomplete"
)

// Verdict is what a history comes to. Its JSON form has stable names; they are those of the struct tags here and below.
// Durations are milliseconds, and times are milliseconds since the run began; their names end in _ms. What Run has is as
// it stands in the history: nanoseconds, with names that end in _ns.
type Verdict struct {
	Result Result `json:"result"`
	// Incomplete says why the final state is not known or nothing was proved. Empty: it is, and something was.
	Incomplete string `json:"incomplete,omitempty"`
	Run        Run    `json:"run"`
	// Lines is how many lines were read, the run's included.
	Lines int `json:"lines"`
	// Duration is the time of the last line.
	Duration   Milliseconds  `json:"duration_ms"`
	Counters   Counters      `json:"counters"`
	Delivery   Delivered     `json:"delivery"`
	Faults     []FaultReport `json:"faults"`
	Violations []Violation   `json:"violations"` // by party, then by code; empty where there are none
}

// Passed tells whether the run is a proof: complete, and nothing found.
func (v *Verdict) Passed() bool { return v.Result == Pass }

// Counters are those of RabbitMQ's Jepsen work, and more. They count messages where nothing else is said. Messages that were
// discarded behind a savepoint are not among those of Attempt, Acknowledged, Unknown and RolledBack.
type Counters struct {
	// Attempt: COMMIT was sent, or may have been.
	Attempt int `json:"attempt"`
	// Acknowledged: COMMIT was answered.
	Acknowledged int `json:"acknowledged"`
	// OK: acknowledged, and delivered at least once; or, of a kind that cannot arrive, dead-lettered.
	OK int `json:"ok"`
	// Lost: committed, and neither delivered nor in a table.
	Lost int `json:"lost"`
	// Duplicated is how many arrivals were repeats by the relay: DuplicatedMarked with x-possible-duplicate and
	// DuplicatedUnmarked without. DuplicatedOvertaken of the latter were the first copy without it, and a marked one had
	// arrived before: copies on two connections can overtake each other, so these break no promise by themselves.
	Duplicated          int `json:"duplicated"`
	DuplicatedMarked    int `json:"duplicated_marked"`
	DuplicatedUnmarked  int `json:"duplicated_unmarked"`
	DuplicatedOvertaken int `json:"duplicated_overtaken"`
	// Unexpected: arrived or is in a table, and was never committed: rolled back, discarded, of an unknown id.
	Unexpected int `json:"unexpected"`
	// Recovered: COMMIT was not answered, its business row shows that it was done, and the message was delivered or, of a
	// kind that cannot arrive, dead-lettered.
	Recovered int `json:"recovered"`

	// Unknown: COMMIT was not answered.
	Unknown int `json:"unknown"`
	// RolledBack: of transactions that were rolled back.
	RolledBack int `json:"rolled_back"`
	Discarded  int `json:"discarded"`
	// Delivered: arrived at least once, whatever became of its transaction.
	Delivered int `json:"delivered"`
	// Redelivered is how many arrivals were copies that the broker handed out again.
	Redelivered int `json:"redelivered"`
	// DeadLettered: in the dead-letter table at the end.
	DeadLettered int `json:"dead_lettered"`
	// Waiting: in the outbox at the end.
	Waiting int `json:"waiting"`
	// OutOfOrder: arrived first after one of greater place in its key.
	OutOfOrder int `json:"out_of_order"`
	// Early is how many arrivals came before they were due.
	Early int `json:"early"`
	// Damaged is how many arrivals were not as written.
	Damaged             int `json:"damaged"`
	NeedlessDeadLetters int `json:"needless_dead_letters"`
	NeedlessAttempts    int `json:"needless_attempts"`
	// LostByDatabase: acknowledged, and the business row is gone. Not counted as lost.
	LostByDatabase int `json:"lost_by_database"`
	// LostWithQueues: not delivered, and queues were emptied after it was committed. Not counted as lost.
	LostWithQueues int `json:"lost_with_queues"`
}

// Delivered is how fast and how steadily messages arrived.
type Delivered struct {
	// PerSecond is messages that arrived, each counted once, by the time from the first to the last arrival.
	PerSecond float64 `json:"per_second"`
	// PeakPerSecond is the most in one second of the run.
	PeakPerSecond int `json:"peak_per_second"`
	// Latency is from the answer to COMMIT until the first arrival, of the LatencyOf messages between which no fault was
	// under way or being caught up with; scheduled ones are left out.
	LatencyOf  int          `json:"latency_of"`
	LatencyP50 Milliseconds `json:"latency_p50_ms"`
	LatencyP99 Milliseconds `json:"latency_p99_ms"`
	LatencyMax Milliseconds `json:"latency_max_ms"`
	// LongestGap is the longest time without a first arrival, until the last commit, and outside of faults and of the
	// recovery from them. It began at GapBegan.
	LongestGap Milliseconds `json:"longest_gap_ms"`
	GapBegan   Milliseconds `json:"longest_gap_began_ms"`
}

// FaultReport is what a fault did.
type FaultReport struct {
	ID     int          `json:"id"`
	Name   string       `json:"name"`
	Detail string       `json:"detail,omitempty"`
	Began  Milliseconds `json:"began_ms"`
	// Healed is absent where the fault was not healed within the history.
	Healed *Milliseconds `json:"healed_ms,omitempty"`
	// Recovery is the time from Healed to the first arrival, not a redelivered one, of a message that was committed after
	// Healed. Absent: none arrived.
	Recovery *Milliseconds `json:"recovery_ms,omitempty"`
	// Silence is how much of Recovery passed after the first such commit. This is what Run.RecoverWithin judges: before
	// it there was nothing to deliver. Absent: nothing was committed after Healed.
	Silence *Milliseconds `json:"silence_ms,omitempty"`
	// CaughtUp is the time from Healed until everything that was committed before Healed had arrived; what is scheduled,
	// dead-lettered or lost with its queue is left out. Absent: something never arrived.
	CaughtUp *Milliseconds `json:"caught_up_ms,omitempty"`
	// Repeats is how many repeats are laid to the fault, RepeatsAllowed how many may be.
	Repeats        int `json:"repeats"`
	RepeatsAllowed int `json:"repeats_allowed"`
}

// Party is who broke a promise.
type Party string

// The parties.
const (
	Relay    Party = "relay"
	Database Party = "database"
	History  Party = "history" // the history contradicts itself: the run is at fault
)

// Code names a kind of violation. Codes are stable.
type Code string

// The codes of violations.
const (
	Lost               Code = "lost"                 // committed, and neither delivered nor in a table
	Unexpected         Code = "unexpected"           // delivered or in a table, and never committed
	UnmarkedRepeat     Code = "unmarked_repeat"      // a second copy without x-possible-duplicate
	TooManyRepeats     Code = "too_many_repeats"     // more than the faults until then allow
	OutOfOrder         Code = "out_of_order"         // arrived after a later message of its key
	Early              Code = "early"                // arrived before it was due
	Damaged            Code = "damaged"              // arrived, and not as written
	NeedlessDeadLetter Code = "needless_dead_letter" // dead-lettered, and the broker had no reason to refuse it
	NeedlessAttempt    Code = "needless_attempt"     // charged with a refusal, and the broker had no reason
	Stuck              Code = "stuck"                // still in the outbox when all should have left
	TwoRows            Code = "two_rows"             // more than one row of one message
	SlowRecovery       Code = "slow_recovery"        // nothing new was delivered for too long after a fault
	LostCommit         Code = "lost_commit"          // the database lost a commit that it had acknowledged
	Contradiction      Code = "contradiction"        // the history contradicts itself
)

// Party tells who is at fault where the code occurs.
func (c Code) Party() Party {
	switch c {
	case LostCommit:
		return Database
	case Contradiction:
		return History
	default:
		return Relay
	}
}

// Violation is a promise that was broken, once or often.
type Violation struct {
	Code  Code  `json:"code"`
	Party Party `json:"party"`
	Count int   `json:"count"`
	// First are the earliest that were found, at most 20.
	First []Finding `json:"first"`
}

// Finding is one occurrence of a violation.
type Finding struct {
	At Milliseconds `json:"at_ms"` // when it showed, since the run began
	// What is a sentence: which message, transaction or key, and what was seen.
	What string `json:"what"`
}

// Milliseconds is a duration whose JSON form is a number of milliseconds, with up to three places after the point.
type Milliseconds time.Duration

// String writes it for people.
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

// UnmarshalJSON reads it again, so that reports of several runs can be compared.
func (m *Milliseconds) UnmarshalJSON(text []byte) error {
	number, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return err
	}
	*m = Milliseconds(time.Duration(number * float64(time.Millisecond)).Round(time.Microsecond))
	return nil
}
